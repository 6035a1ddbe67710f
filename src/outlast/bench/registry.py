"""All benchmarks, by name."""

from __future__ import annotations

from outlast.bench.benchmark import Benchmark
from outlast.bench.llama.sections import LLAMA_BENCHMARK
from outlast.bench.long.sections import LONG_BENCHMARK
from outlast.bench.lstm.sections import LSTM_BENCHMARK
from outlast.bench.seeds.sections import SEEDS_BENCHMARK
from outlast.bench.tra.sections import TRA_BENCHMARK
from outlast.errors import bad_value

ALL = (TRA_BENCHMARK, SEEDS_BENCHMARK, LSTM_BENCHMARK, LLAMA_BENCHMARK, LONG_BENCHMARK)
BENCHMARKS = {b.name: b for b in ALL}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name."""
    if name not in BENCHMARKS:
        raise bad_value("name", name, " | ".join(BENCHMARKS))
    return BENCHMARKS[name]
