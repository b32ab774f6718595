"""Producers and operators of queues: `Client` under asyncio, `SyncClient` for everybody else."""

from istos_worker.client.client import Client
from istos_worker.client.sync import SyncClient

__all__ = ["Client", "SyncClient"]
