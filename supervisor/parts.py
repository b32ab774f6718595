"""All parts of one supervisor, put together. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.companions import Keeper
from supervisor.crew import Crew
from supervisor.generations import Generations
from supervisor.ground import Ground
from supervisor.hooks import Hooks
from supervisor.ledger import Ledger
from supervisor.mourning import Mourning
from supervisor.picture import Picture
from supervisor.post import Post
from supervisor.recycling import Recycler
from supervisor.reloading import Reloading
from supervisor.rolling import Rolling
from supervisor.stalls import Stalls
from supervisor.stopping import Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`keeper` None: there is no companion."""

    ledger: Ledger
    post: Post
    generations: Generations
    crew: Crew
    keeper: Keeper | None
    recycler: Recycler
    rolling: Rolling
    reloading: Reloading
    stalls: Stalls
    stopping: Stopping
    picture: Picture


def assemble(ground: Ground, hooks: Hooks) -> Parts:
    settings = ground.settings
    ledger, post = Ledger(policy=settings.restarts), Post()
    mourning = Mourning(hooks=hooks, post=post, ledger=ledger, burst=settings.burst)
    generations = Generations(ground=ground)
    crew = Crew(
        ground=ground, generations=generations, mourning=mourning, ledger=ledger, wanted=settings.procs
    )
    generations.on_message = crew.zygote_says
    keeper = _keeper(ground, ledger)
    recycler = Recycler(crew=crew, recycling=settings.recycling)
    rolling = Rolling(crew=crew, due=recycler.due)
    reloading = Reloading(crew=crew, generations=generations, rolling=rolling)
    stopping = Stopping(crew=crew, generations=generations, keeper=keeper)
    picture = Picture(crew=crew, keeper=keeper, reloading=reloading, stopping=stopping, recycler=recycler)
    return Parts(
        ledger=ledger,
        post=post,
        generations=generations,
        crew=crew,
        keeper=keeper,
        recycler=recycler,
        rolling=rolling,
        reloading=reloading,
        stalls=Stalls(crew=crew, stall_s=settings.timeouts.stall_s),
        stopping=stopping,
        picture=picture,
    )


def _keeper(ground: Ground, ledger: Ledger) -> Keeper | None:
    companion = ground.settings.companion
    if companion is None:
        return None
    return Keeper(ground=ground, companion=companion, conclude=ledger.conclude)
