"""Jobs of one request that differ only in body and workflow: described once, however many there are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from istos_worker.queue.records import NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """`like` says everything but each job's body, id and workflow. With `base_id` X the ids are X.0, X.1, ..."""

    like: NewJob
    bodies: Sequence[bytes]
    wfs: Sequence[str | None] | None = None
    base_id: str | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def is_plain(self) -> bool:
        """Its jobs are ready at once, and nothing but their ids can be held already."""
        like = self.like
        return (
            self.wfs is None
            and like.unique_key is None
            and like.schedule is None
            and like.expires_s is None
            and like.correlation_id is None
            and like.traceparent is None
            and not like.delay_s
        )

    def id_of(self, index: int) -> str | None:
        return None if self.base_id is None else f"{self.base_id}.{index}"

    def strictest(self) -> NewJob:
        """If the door takes this one, it takes them all, but for their workflows."""
        return replace(self.like, body=max(self.bodies, key=len), job_id=self.id_of(len(self) - 1))

    def jobs(self) -> list[NewJob]:
        like, wfs = self.like, self.wfs or [None] * len(self)
        return [
            NewJob(
                body=body,
                job_id=self.id_of(index),
                priority=like.priority,
                delay_s=like.delay_s,
                max_attempts=like.max_attempts,
                wf=wf,
                correlation_id=like.correlation_id,
                traceparent=like.traceparent,
                unique_key=like.unique_key,
                expires_s=like.expires_s,
                schedule=like.schedule,
                tick=like.tick,
            )
            for index, (body, wf) in enumerate(zip(self.bodies, wfs, strict=True))
        ]


class BatchEnqueued(NamedTuple):
    job_ids: list[str]
    duplicates: int = 0
