"""What a launcher runs for a cell: its process, from the lock to job.json. The same under every launcher.

Plain data only crosses to where it runs; it raises nothing for a job that ends badly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from engine.sweeps import process
from engine.sweeps.folder import FAIL_FAST, FORCE, LOG, STOP, SweepFolder
from engine.sweeps.outcome import SWEEP_INTERRUPTED, Ending, verdict
from engine.sweeps.states import FAILURES, INTERRUPTED, JobState

_URGENCY = {"": process.CALM, FAIL_FAST: process.CALM, STOP: process.STOP, FORCE: process.FORCE}


@dataclass(frozen=True)
class Supervisor:
    """Hydra's task function. folder: of the sweep. cwd: where the sweep was started. overrides: cell -> its
    command line. timeout: seconds. fail_fast: after a job that failed, jobs that have not begun do not."""

    folder: str
    cwd: str
    overrides: Mapping[str, tuple[str, ...]] = field(repr=False)
    timeout: float | None
    fail_fast: bool

    def __call__(self, config: DictConfig) -> str | None:
        """Run the cell that Hydra's output folder is named after; its state, None where it did not run."""
        cell_id = Path(HydraConfig.get().runtime.output_dir).name
        sweep = SweepFolder(Path(self.folder))
        with sweep.job_locked(cell_id) as free:
            if not free or sweep.wish():
                return None
            state = self._run(sweep, cell_id)
        if self.fail_fast and state.state in FAILURES and not sweep.wish():
            sweep.ask(FAIL_FAST)
        return state.state

    def _run(self, sweep: SweepFolder, cell_id: str) -> JobState:
        former = sweep.state(cell_id)
        attempt = 1 if former is None else former.attempt + 1
        sweep.clear(cell_id)
        started, clock = _now(), time.monotonic()

        def write(name: str, reason: str | None, exit_code: int | None) -> JobState:
            seconds = round(time.monotonic() - clock, 3)
            state = JobState(cell_id, name, reason, exit_code, seconds, started, _now(), attempt)
            sweep.write_state(state)
            return state

        try:
            ending = self._job(sweep, cell_id)
        except KeyboardInterrupt:  # the second signal, where a job is run by the sweep's own process
            write(INTERRUPTED, SWEEP_INTERRUPTED, None)
            raise
        return write(*verdict(ending, sweep.job(cell_id) / LOG), ending.exit_code)

    def _job(self, sweep: SweepFolder, cell_id: str) -> Ending:
        with open(sweep.job(cell_id) / LOG, "wb") as out:
            return process.run_process(
                sweep.job(cell_id),
                out,
                self.overrides[cell_id],
                self.cwd,
                self.timeout,
                lambda: _URGENCY.get(sweep.wish(), process.STOP),
            )


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
