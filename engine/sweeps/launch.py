"""Jobs through Hydra's launcher plugins: the built-in one, joblib, Ray, Slurm. Knows no job's inside.

A launcher sees nothing of a cell but its folder: what it composes of its own has no part in the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from engine.compose import search_path
from engine.conf_tree import ROOT_NAME
from engine.errors import UserError
from engine.quoting import quote
from engine.sweeps.folder import JOBS
from engine.sweeps.process import python_path
from engine.typed import nearest

LAUNCHER = "hydra/launcher"
EXTRAS = {"joblib": "joblib", "ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}
OURS = {"pool": "joblib", "ray_gpus": "ray", "slurm": "submitit_slurm"}  # conf/hydra/launcher: built on


@dataclass(frozen=True)
class LaunchPlan:
    """Hydra's own config of a sweep, composed before anything is made. folder: where it is asked to be."""

    hydra: Hydra
    overrides: tuple[str, ...]
    config: DictConfig

    @property
    def folder(self) -> str:
        return str(self.config.hydra.sweep.dir)

    @property
    def cwd(self) -> str:
        return str(self.config.hydra.runtime.cwd)

    def launch(self, directory: str, cell_ids: Sequence[str], task: TaskFunction) -> None:
        """Run the jobs of these cells; returns when all have ended. directory: of the sweep. Raises
        what kept a job from being run or written down (a full disk), after the others."""
        config = self._compose([f"hydra.sweep.dir={quote(directory)}", "hydra.output_subdir=null"])
        launcher = self._launcher(config, task)
        jobs = [[f"hydra.sweep.subdir={JOBS}/{cell_id}"] for cell_id in cell_ids]
        with env_override({"PYTHONPATH": python_path()}):  # for workers that a launcher starts
            returned = launcher.launch(jobs, 0)
        for job in returned:
            _ = job.return_value  # raises what the job's task raised

    def _compose(self, more: Sequence[str]) -> DictConfig:
        kept = [line for line in self.overrides if not line.startswith("hydra.sweep.dir=")]
        return _composed(self.hydra, [*kept, *more])

    def _launcher(self, config: DictConfig, task: TaskFunction) -> Launcher:
        context = HydraContext(config_loader=self.hydra.config_loader, callbacks=Callbacks(config))
        return Plugins.instance().instantiate_launcher(context, task, config)


@contextmanager
def launch_plan(overrides: Sequence[str]) -> Iterator[LaunchPlan]:
    """overrides: of Hydra itself. UserError for a launcher that is unknown or not installed."""
    hydra = Hydra.create_main_hydra2("syncless", search_path())
    try:
        _require_launcher(hydra, overrides)
        yield LaunchPlan(hydra, tuple(overrides), _composed(hydra, overrides))
    finally:
        GlobalHydra.instance().clear()


def _composed(hydra: Hydra, overrides: Sequence[str]) -> DictConfig:
    return hydra.compose_config(ROOT_NAME, list(overrides), run_mode=RunMode.MULTIRUN)


def _require_launcher(hydra: Hydra, overrides: Sequence[str]) -> None:
    chosen = [line.partition("=")[2] for line in overrides if line.partition("=")[0] == LAUNCHER]
    Plugins.instance()  # plugins tell Hydra of their options when they are found
    there = hydra.config_loader.get_group_options(LAUNCHER)
    known = sorted({*there, *EXTRAS})
    for name in chosen:
        plugin = OURS.get(name, name)
        if plugin in there:
            continue
        if plugin in EXTRAS:
            raise UserError(f"{LAUNCHER}={name} is not installed: pip install 'syncless[{EXTRAS[plugin]}]'")
        choices = f"{', '.join(known)}{nearest(name, known)}"
        raise UserError(f"{LAUNCHER}={name}: there is no such launcher; there are {choices}")
