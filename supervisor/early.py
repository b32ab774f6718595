"""Keep signals that arrive while a process is still importing. Knows one module: signal.

That makes enums of what C gives back, for nobody here, and a process that runs this code for the first time has a
page or two less in common with its parent for each function: 0.3 MB a worker. So it is done without.
"""

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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


_mask = getattr(signal.pthread_sigmask, "__wrapped__", signal.pthread_sigmask)
_handle = getattr(signal.signal, "__wrapped__", signal.signal)
_BLOCK, _UNBLOCK, _DEFAULT = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK), int(signal.SIG_DFL)


def hold_signals() -> None:
    """Block the signals of the fleet; `release_signals` delivers what came meanwhile."""
    _mask(_BLOCK, FLEET_SIGNALS)


def release_signals() -> None:
    _mask(_UNBLOCK, FLEET_SIGNALS)


def handle(signum: int, handler: "Callable[[int, FrameType | None], object]") -> None:
    """As signal.signal."""
    _handle(signum, handler)


def handle_by_default(signum: int) -> None:
    _handle(signum, _DEFAULT)
