"""The wiring of the engine on one screen: who is built from what, and who is shared.

Owns construction and lifetime. Names no backend, model or algorithm: those come from the config's
`_target_`s.
"""

from __future__ import annotations

from dependency_injector import containers
from dependency_injector.providers import Callable, Configuration, Dict, List, Object, Singleton

from engine import budget as memory
from engine import draft_factories as drafting
from engine import factories as make
from engine import mode_factories as moding
from engine.device_queue import make_queue
from engine.executor import Executor
from engine.graphs.capture import make_capturer
from engine.lengths import needs_cpu_seq_lens
from engine.metrics import EngineMetrics
from engine.models.source import silent
from engine.sampling.sampler import Sampler
from engine.scheduling.tape import UNRECORDED


class EngineContainer(containers.DeclarativeContainer):
    """One engine. `config` is the composed root as plain data; strict, so a missing key is an error, not
    None.
    """

    config = Configuration(strict=True)
    progress = Object(silent)  # overridden with a Progress that shows how far the read has come
    tape = Object(UNRECORDED)  # overridden with a Tape that writes the run's course down

    device = Singleton(make.device, config.device, config.threads)
    metrics = Singleton(EngineMetrics)
    queue = Singleton(make_queue, device)

    source = Singleton(make.part, config.model, "model")
    dtype = Singleton(make.dtype, source, device, config.attention)
    loaded = Singleton(make.loaded_model, source, device, dtype, progress)
    model = loaded.provided.model
    tokenizer = loaded.provided.tokenizer

    plan = Singleton(drafting.spec_plan, config.spec)
    draft = Singleton(drafting.draft_model, config.spec, loaded, source.provided.name, dtype, device)
    policy = Singleton(make.part, config.scheduler, "scheduler")
    cache_config = Singleton(make.typed, config.cache, "cache")
    cache = Singleton(make.prefix_cache, config.cache, cache_config, plan)
    graph = Singleton(make.part, config.graph, "graph")
    pcg = Singleton(make.part, config.pcg, "pcg")
    tbo = Singleton(make.part, config.tbo, "tbo")
    wanted = Singleton(
        memory.wanted,
        cache_config,
        policy.provided.config,
        model,
        dtype,
        plan,
        draft,
        config.attention,
        config.spec,
        Singleton(memory.Modes, graph, pcg, tbo),
        device,
    )
    budget = Singleton(memory.budget, wanted, device)
    sizes = budget.provided.sizes
    pool = Singleton(make.kv_pool, model, sizes, device, config.overlap)

    capturer = Singleton(make_capturer, device)
    kernels = Singleton(make.kernel_choices, config.kernels, device, config.attention)
    attention = Singleton(make.attention, config.attention, model, sizes, device, "target", tbo, kernels)
    draft_pool = Singleton(drafting.draft_pool, draft, plan, sizes, device, config.overlap)
    drafts = Singleton(drafting.draft_attention, config.spec, plan, draft, sizes, device, kernels)
    modes = Singleton(
        moding.context, capturer, metrics, sizes, policy.provided.config, plan, device, progress, drafts
    )
    host = Singleton(
        drafting.draft_host, draft, draft_pool, drafts, attention, sizes, tokenizer, model, device, metrics
    )
    speculator = Singleton(make.part, config.spec, "spec", List(host))
    slots = Callable(make.slots, attention, drafts)
    needs_lens = Singleton(needs_cpu_seq_lens, speculator, slots)

    columns = Singleton(make.columns, model, sizes, device)
    table = Singleton(make.table, sizes, columns, speculator, device, config.overlap)
    uploader = Singleton(make.uploader, device, table)
    sampler = Singleton(Sampler)
    passes = Singleton(moding.passes, model, pool, pcg, modes)
    driver = Singleton(moding.driver, passes, attention, tbo, modes)
    runner = Singleton(moding.runner, model, attention, pool, driver, draft, pcg, graph, modes)
    ops = Singleton(drafting.ops, attention, plan, columns)
    step = Singleton(drafting.step, table, runner, speculator, sampler, ops, metrics, device, graph, modes)
    futures = Singleton(make.futures, queue, metrics, needs_lens, config.overlap)
    executor = Singleton(Executor, table, uploader, step, futures)

    scratch = Singleton(drafting.scratch_steps, table, step, pool, draft_pool, queue, needs_lens)
    bare = Singleton(moding.bare, runner, driver)
    plain = Singleton(drafting.plain_step, table, bare, speculator, sampler, ops)
    eager = Singleton(drafting.scratch_steps, table, plain, pool, draft_pool, queue, needs_lens)
    warmed = Singleton(moding.warmed, eager, tbo, modes)
    captured = Singleton(moding.captured, graph, scratch, modes)
    circumstances = Dict(
        model=config.model,
        files=loaded.provided.files,
        dtype=dtype,
        spec=config.spec,
        attention=config.attention,
        pages=sizes.provided.page_size,
        graph=config.graph,
        tbo=config.tbo,
        pcg=config.pcg,
    )
    costs = Singleton(
        drafting.step_costs, config.step_costs, plan, scratch, circumstances, device, metrics, progress
    )
    widths = Singleton(drafting.width_policy, speculator, costs)
    alarm = Singleton(drafting.acceptance_watch, speculator, plan)
    scheduler = Singleton(make.scheduler, policy, cache, sizes, plan, widths, loaded, metrics, alarm, tape)
    loop = Singleton(make.part, config.overlap, "overlap", List(scheduler, executor))
