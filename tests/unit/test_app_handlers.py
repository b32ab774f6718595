"""An app's handlers are made once, and again when something that they are made of is another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from istos_worker import App
from istos_worker.context import JobContext


@dataclass
class Tagged:
    """A middleware that compares equal to others."""

    tag: str = field(compare=False)

    async def __call__(self, ctx: JobContext, call_next: Any) -> Any:
        return await call_next()


def test_handlers_are_made_again_only_for_what_was_declared_since() -> None:
    app = App()

    @app.worker("jobs/a")
    async def job(body: object) -> None:
        return None

    made = app.handlers_of("jobs/a")
    assert app.handlers_of("jobs/a") is made

    first, second = Tagged("first"), Tagged("second")
    app.add_middleware(first)
    assert app.handlers_of("jobs/a").middleware == (first,)

    app.middleware[0] = second
    (found,) = app.handlers_of("jobs/a").middleware
    assert found is second
