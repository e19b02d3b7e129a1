"""The files of tests that `make test-fast` leaves out, and why each takes long; `make test` runs them all.

The quick ones hold every room's arithmetic; these hold what takes a compiler, a real model or many processes to show.
"""

from __future__ import annotations

__all__ = ["SLOW"]

_GRAPHS = "compiles graphs of torch.compile"
_KERNELS = "compiles kernels"
_REAL = "runs a real model"
_PROCESSES = "starts a process of its own for most tests"
_BROWSER = "opens pages in a browser"
_MODELS = "builds and runs many models or layers"

SLOW = {
    "tests/bench/test_contestants.py": _KERNELS,
    "tests/bench/test_latent.py": _KERNELS,
    "tests/check/test_examples.py": _PROCESSES,
    "tests/check/test_guess.py": _PROCESSES,
    "tests/check/test_hostile.py": _PROCESSES,
    "tests/check/test_multihead.py": _MODELS,
    "tests/check/test_subjects.py": _PROCESSES,
    "tests/check/test_supervise.py": _PROCESSES,
    "tests/checkpoints/test_hub.py": _PROCESSES,
    "tests/checkpoints/test_model_types.py": _MODELS,
    "tests/cli/test_bench.py": _KERNELS,
    "tests/cli/test_check.py": _PROCESSES,
    "tests/cli/test_heads.py": _MODELS,
    "tests/cli/test_prune.py": _MODELS,
    "tests/cli/test_xray.py": _REAL,
    "tests/convert/test_convert_real.py": _REAL,
    "tests/convert/test_layer_fit.py": _MODELS,
    "tests/convert/test_layer_run.py": _MODELS,
    "tests/heads/effects/test_ablation.py": _MODELS,
    "tests/heads/effects/test_budgeted_ablation.py": _MODELS,
    "tests/heads/effects/test_importance_real.py": _REAL,
    "tests/heads/gates/test_train.py": _MODELS,
    "tests/heads/page/test_ways_into_maps.py": _BROWSER,
    "tests/heads/page/test_widgets.py": _BROWSER,
    "tests/heads/pruning/test_export.py": _REAL,
    "tests/heads/pruning/test_remove.py": _MODELS,
    "tests/heads/roles/test_roles.py": _MODELS,
    "tests/heads/roles/test_roles_real.py": _REAL,
    "tests/heads/statistics/test_eager_weights.py": _MODELS,
    "tests/heads/statistics/test_statistics.py": _REAL,
    "tests/heads/test_bad_input.py": _MODELS,
    "tests/heads/test_cases.py": "measures memory in processes of their own",
    "tests/kernels/test_decode.py": _KERNELS,
    "tests/kernels/test_fuzz.py": _KERNELS,
    "tests/kernels/test_project.py": _KERNELS,
    "tests/kernels/test_survival.py": _PROCESSES,
    "tests/layer/test_backends.py": _KERNELS,
    "tests/layer/test_caches.py": _MODELS,
    "tests/layer/test_compile.py": _GRAPHS,
    "tests/layer/test_multihead_databases.py": _MODELS,
    "tests/layer/test_multihead_running.py": _MODELS,
    "tests/layer/test_transformers_parity.py": _MODELS,
    "tests/models/caches/test_int8_perplexity.py": _REAL,
    "tests/models/caches/test_make.py": _MODELS,
    "tests/models/door/test_autocast.py": _MODELS,
    "tests/models/door/test_compile.py": _GRAPHS,
    "tests/models/door/test_door.py": _MODELS,
    "tests/models/door/test_generate.py": _MODELS,
    "tests/models/door/test_output_attentions.py": _MODELS,
    "tests/models/load/test_model.py": _REAL,
    "tests/models/store/test_gguf.py": _MODELS,
    "tests/models/store/test_write.py": _MODELS,
    "tests/models/test_enable.py": _MODELS,
    "tests/models/test_resident_bytes.py": _MODELS,
    "tests/ops/test_compile.py": _GRAPHS,
    "tests/ops/test_tiled.py": _MODELS,
    "tests/test_docs_snippets.py": _MODELS,
    "tests/xray/test_heads.py": _MODELS,
    "tests/xray/test_page.py": _BROWSER,
    "tests/xray/test_run.py": _REAL,
}
