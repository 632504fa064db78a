"""Where every request is: waiting, prefilling, decoding, or leaving behind the fence; and who has which row.

Knows when something may be released, not what is computed.
"""

from __future__ import annotations

from engine.batch import Finish
from engine.cache.ledger import PageLedger
from engine.errors import InternalError
from engine.metrics import EngineMetrics
from engine.request import Request, State
from engine.scheduling.admission import WaitingRoom
from engine.scheduling.tape import UNRECORDED, Tape


class Roster:
    """Rows 1..max_running, and requests by stage.

    The fence: row and pages of a request that ended or was retracted are released once `applied`, the latest
    step whose result is here, reaches the last launched step that contains the request.
    """

    def __init__(
        self,
        room: WaitingRoom,
        ledger: PageLedger,
        max_running: int,
        metrics: EngineMetrics,
        tape: Tape = UNRECORDED,
    ) -> None:
        self.room = room
        self.prefilling: dict[Request, None] = {}
        self.decoding: dict[Request, None] = {}
        self.leaving: list[Request] = []
        self.applied = 0
        self._ledger = ledger
        self._metrics = metrics
        self._tape = tape
        self._max_running = max_running
        self._free_rows = list(range(max_running, 0, -1))
        self._known: dict[str, dict[int, Request]] = {}

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def admitted(self) -> list[Request]:
        """Those with a row that go on running, decoding ones first."""
        return [*self.decoding, *self.prefilling]

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._known)

    def knows(self, request_id: str, index: int) -> bool:
        """Whether that sample of a request is unfinished."""
        return index in self._known.get(request_id, ())

    def samples(self, request_id: str) -> list[Request]:
        """Unfinished samples of a request."""
        return list(self._known.get(request_id, {}).values())

    def arrive(self, request: Request) -> None:
        """Let a new request wait."""
        self._known.setdefault(request.id, {})[request.index] = request
        self.room.add(request, self.applied)
        self._tape.arrived(request, self.applied)

    def start(self, request: Request) -> None:
        """Give a row to a request that has its pages."""
        request.row = self._free_rows.pop()
        request.state = State.PREFILL
        self.prefilling[request] = None

    def begin_decoding(self, request: Request) -> None:
        """The last chunk of a request's prefill was launched: its first token will be on the device."""
        request.state = State.RUNNING
        del self.prefilling[request]
        self.decoding[request] = None

    def retract(self, request: Request) -> bool:
        """Take a request's place away; whether it left at once. A step in flight is applied to it first."""
        self._metrics.retractions += 1
        self.decoding.pop(request, None)
        self.prefilling.pop(request, None)
        request.state = State.RETRACTED
        return self._leave(request)

    def depart(self, request: Request) -> None:
        """A finished request gives up its place, once no launched step touches it any more."""
        samples = self._known[request.id]
        del samples[request.index]
        if not samples:
            del self._known[request.id]
        self._metrics.finished_requests += 1
        self._tape.ended(request, self.applied)
        state, request.state = request.state, State.FINISHED
        if state is State.WAITING:
            self.room.discard(request)
        elif state is not State.RETRACTED:  # a retracted one is leaving already
            self.decoding.pop(request, None)
            self.prefilling.pop(request, None)
            self._leave(request)

    def pass_fence(self) -> None:
        """Release whoever waited for the step that was just applied."""
        passed = [r for r in self.leaving if r.last_step <= self.applied]
        if passed:
            self.leaving = [r for r in self.leaving if r.last_step > self.applied]
            for request in passed:
                self._release(request)

    def check(self) -> None:
        """Every page and every row has one owner; InternalError with what each request holds if not."""
        holders = [*self.prefilling, *self.decoding, *self.leaving]
        self._ledger.check(holders)
        rows = sorted([*self._free_rows, *(r.row for r in holders)])
        if rows != list(range(1, self._max_running + 1)):
            raise InternalError(f"rows lost or owned twice: {rows}; requests: {holders}")

    def _leave(self, request: Request) -> bool:
        if request.last_step > self.applied:
            self.leaving.append(request)
            return False
        self._release(request)
        return True

    def _release(self, request: Request) -> None:
        """Row and pages are free; a request that has not finished waits again, in front."""
        self._ledger.release(request)
        self._free_rows.append(request.row)
        self.room.unblock()
        if request.finish is Finish.NONE:
            self.room.put_back(request, self.applied)
