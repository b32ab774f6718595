"""Keep signals that arrive while a process is still importing. Knows one module: signal."""

import signal

FLEET_SIGNALS = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTTIN,
        signal.SIGTTOU,
    }
)


def hold_signals() -> None:
    """Block the signals of the fleet; `release_signals` delivers what came meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FLEET_SIGNALS)


def release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FLEET_SIGNALS)
