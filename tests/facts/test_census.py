"""The census against what others published: exact totals, shapes, cache bytes; and against transformers' own models."""

from __future__ import annotations

import copy
import time

import pytest

from manyheads.facts.census import CensusEntry, census, find, nearest

# Parameters, scheme, layers, d_model, query heads, KV heads, head size, value head size, 16-bit KV bytes a token with all
# layers at full length. Totals: keras-hub's published counts, litgpt's shapes, the makers' readmes (see each entry).
PUBLISHED = """
gpt2                      124439808 mha  12   768  12  12  64  64   36864
gpt2-medium               354823168 mha  24  1024  16  16  64  64   98304
gpt2-large                774030080 mha  36  1280  20  20  64  64  184320
gpt2-xl                  1557611200 mha  48  1600  25  25  64  64  307200
pythia-70m                 70426624 mha   6   512   8   8  64  64   12288
pythia-1.4b              1414647808 mha  24  2048  16  16 128 128  196608
pythia-6.9b              6857302016 mha  32  4096  32  32 128 128  524288
pythia-12b              11846072320 mha  36  5120  40  40 128 128  737280
bloom-560m                559214592 mha  24  1024  16  16  64  64   98304
opt-125m                  125239296 mha  12   768  12  12  64  64   36864
falcon-7b                6921720704 mqa  32  4544  71   1  64  64    8192
falcon-40b              41303293952 gqa  60  8192 128   8  64  64  122880
llama-2-7b               6738415616 mha  32  4096  32  32 128 128  524288
llama-2-13b             13015864320 mha  40  5120  40  40 128 128  819200
llama-2-70b             68976648192 gqa  80  8192  64   8 128 128  327680
llama-3-8b               8030261248 gqa  32  4096  32   8 128 128  131072
llama-3-70b             70553706496 gqa  80  8192  64   8 128 128  327680
llama-3.1-405b         405853388800 gqa 126 16384 128   8 128 128  516096
llama-3.2-1b             1235814400 gqa  16  2048  32   8  64  64   32768
llama-3.2-3b             3212749824 gqa  28  3072  24   8 128 128  114688
tinyllama-1.1b           1100048384 gqa  22  2048  32   4  64  64   22528
smollm2-135m              134515008 gqa  30   576   9   3  64  64   23040
mistral-7b-v0.1          7241732096 gqa  32  4096  32   8 128 128  131072
mistral-7b-v0.3          7248023552 gqa  32  4096  32   8 128 128  131072
mistral-nemo-12b        12247782400 gqa  40  5120  32   8 128 128  163840
mixtral-8x7b            46702792704 gqa  32  4096  32   8 128 128  131072
mixtral-8x22b          140630071296 gqa  56  6144  48   8 128 128  229376
gemma-2b                 2506172416 mqa  18  2048   8   1 256 256   18432
gemma-7b                 8537680896 mha  28  3072  16  16 256 256  458752
gemma-2-2b               2614341888 gqa  26  2304   8   4 256 256  106496
gemma-2-9b               9241705984 gqa  42  3584  16   8 256 256  344064
gemma-2-27b             27227128320 gqa  46  4608  32  16 128 128  376832
gemma-3-1b                999885952 mqa  26  1152   4   1 256 256   26624
gemma-3-27b             27009002240 gqa  62  5376  32  16 128 128  507904
qwen2.5-0.5b              494032768 gqa  24   896  14   2  64  64   12288
qwen2.5-7b               7615616512 gqa  28  3584  28   4 128 128   57344
qwen2.5-72b             72706203648 gqa  80  8192  64   8 128 128  327680
qwen3-0.6b                596049920 gqa  28  1024  16   8 128 128  114688
qwen3-4b                 4022468096 gqa  36  2560  32   8 128 128  147456
qwen3-8b                 8190735360 gqa  36  4096  32   8 128 128  147456
qwen3-32b               32762123264 gqa  64  5120  64   8 128 128  262144
qwen3-30b-a3b           30532122624 gqa  48  2048  32   4 128 128   98304
qwen3-235b-a22b        235093634560 gqa  94  4096  64   4 128 128  192512
phi-2                    2779683840 mha  32  2560  32  32  80  80  327680
phi-3-mini-4k            3821079552 mha  32  3072  32  32  96  96  393216
phi-4                   14659507200 gqa  40  5120  40  10 128 128  204800
gpt-oss-20b             20914757184 gqa  24  2880  64   8  64  64   49152
gpt-oss-120b           116829156672 gqa  36  2880  64   8  64  64   73728
deepseek-v2-lite        15706484224 mla  27  2048  16  16 192 128   31104
deepseek-v2            235741434880 mla  60  5120 128 128 192 128   69120
deepseek-v3            671026419200 mla  61  7168 128 128 192 128   70272
bert-base-uncased         109482240 mha  12   768  12  12  64  64   36864
bert-large-uncased        335141888 mha  24  1024  16  16  64  64   98304
t5-small                   60506624 mha   6   512   8   8  64  64   12288
t5-base                   222903552 mha  12   768  12  12  64  64   36864
t5-large                  737668096 mha  24  1024  16  16  64  64   98304
t5-11b                  11307321344 mha  24  1024 128 128 128 128 1572864
whisper-tiny               37760640 mha   4   384   6   6  64  64    6144
whisper-large-v2         1543304960 mha  32  1280  20  20  64  64  163840
"""

# The census of the facts: query heads, KV heads, d_model, head size, layers, 16-bit KV bytes a token where stated.
SHAPES = """
llama-7b           32  32  4096 128  32 -
llama-13b          40  40  5120 128  40 -
llama-30b          52  52  6656 128  60 -
llama-65b          64  64  8192 128  80 2621440
llama-2-7b         32  32  4096 128  32 524288
llama-2-13b        40  40  5120 128  40 -
llama-2-34b        64   8  8192 128  48 -
llama-2-70b        64   8  8192 128  80 327680
llama-3-8b         32   8  4096 128  32 131072
llama-3-70b        64   8  8192 128  80 327680
llama-3.1-405b    128   8 16384 128 126 516096
llama-3.2-1b       32   8  2048  64  16 -
llama-3.2-3b       24   8  3072 128  28 -
mistral-7b-v0.1    32   8  4096 128  32 131072
olmo-1b            16  16  2048 128  16 -
olmo-7b            32  32  4096 128  32 -
olmo-2-1b          16  16  2048 128  16 -
olmo-2-7b          32  32  4096 128  32 524288
olmo-2-13b         40  40  5120 128  40 -
olmo-2-32b         40   8  5120 128  64 262144
gemma-2b            8   1  2048 256  18 18432
gemma-7b           16  16  3072 256  28 458752
gemma-2-2b          8   4  2304 256  26 -
gemma-2-9b         16   8  3584 256  42 -
gemma-2-27b        32  16  4608 128  46 -
qwen1.5-7b         32  32  4096 128  32 -
qwen1.5-72b        64  64  8192 128  80 2621440
command-r-v01      64  64  8192 128  40 1310720
command-r-08-2024  64   8  8192 128  40 -
olmoe-1b-7b        16  16  2048 128  16 -
phi-3-mini-4k      32  32  3072  96  32 -
deepseek-7b        32  32  4096 128  30 -
deepseek-67b       64   8  8192 128  95 389120
deepseek-moe-16b   16  16  2048 128  28 -
"""

NO_CLASS = {"deepseek-moe-16b"}  # its code came with the checkpoint; transformers never took it in


def rows(table: str) -> list[tuple[str, list[str]]]:
    return [(line.split()[0], line.split()[1:]) for line in table.strip().splitlines()]


def known(name: str) -> CensusEntry:
    entry = find(name)
    assert entry is not None
    return entry


@pytest.mark.parametrize(
    ("name", "figures"), rows(PUBLISHED), ids=lambda value: value if isinstance(value, str) else ""
)
def test_published_figures_are_the_published_ones(name: str, figures: list[str]) -> None:
    published = known(name).published
    parameters, scheme, layers, d_model, heads, kv_heads, head_dim, v_head_dim, kv_bytes = figures
    assert published["parameters"] == int(parameters)
    assert published["layers"] == int(layers)
    assert published["d_model"] == int(d_model)
    assert published["heads"] == int(heads)
    assert published["kv_heads"] == int(kv_heads)
    assert published["head_dim"] == int(head_dim)
    assert published.get("v_head_dim", published["head_dim"]) == int(v_head_dim)
    assert published["kv_bytes_per_token_16bit"] == int(kv_bytes)
    assert scheme == scheme_of(known(name))


def scheme_of(entry: CensusEntry) -> str:
    if "kv_lora_rank" in entry.config:
        return "mla"
    heads, kv_heads = entry.published["heads"], entry.published["kv_heads"]
    return "mha" if heads == kv_heads else "mqa" if kv_heads == 1 else "gqa"


@pytest.mark.parametrize(("name", "figures"), rows(SHAPES), ids=lambda value: value if isinstance(value, str) else "")
def test_shapes_are_those_of_the_papers(name: str, figures: list[str]) -> None:
    published = known(name).published
    keys = ("heads", "kv_heads", "d_model", "head_dim", "layers")
    assert [published[key] for key in keys] == [int(figure) for figure in figures[:5]]
    if figures[5] != "-":
        assert published["kv_bytes_per_token_16bit"] == int(figures[5])


CACHED = [entry for entry in census() if "kv_bytes_per_token_16bit" in entry.published]


@pytest.mark.parametrize("entry", CACHED, ids=lambda entry: entry.name)
def test_stated_cache_bytes_follow_from_the_stated_shape(entry: CensusEntry) -> None:
    published, config = entry.published, entry.config
    if "kv_lora_rank" in config:
        elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        elements = published["kv_heads"] * 2 * published["head_dim"]
    assert published["kv_bytes_per_token_16bit"] == published["layers"] * elements * 2


def build(entry: CensusEntry) -> tuple[object, object]:
    """(model on the meta device, its config) as transformers builds it."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import torch

    config = dict(copy.deepcopy(entry.config))
    config.pop("architectures")
    config.pop("quantization_config", None)
    family = config.pop("model_type")
    config = transformers.AutoConfig.for_model(family, **config)
    door = {
        "bert": transformers.AutoModel,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "marian": transformers.AutoModelForSeq2SeqLM,
        "whisper": transformers.AutoModelForSpeechSeq2Seq,
    }.get(family, transformers.AutoModelForCausalLM)
    with torch.device("meta"):
        return door.from_config(config), config


@pytest.mark.filterwarnings("ignore")  # what transformers says about old spellings is not our business here
@pytest.mark.parametrize("entry", [e for e in census() if e.name not in NO_CLASS], ids=lambda entry: entry.name)
def test_transformers_builds_the_published_model_from_the_config(entry: CensusEntry) -> None:
    model, config = build(entry)
    count = sum(weight.numel() for weight in model.parameters())  # a tied weight is yielded once
    count += sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    published = entry.published
    if "parameters" in published:
        assert count == published["parameters"]
    elif "parameters_stated" in published:
        assert_stated(count, published["parameters_stated"])
    assert config.num_hidden_layers == published["layers"]
    assert config.hidden_size == published["d_model"]
    assert config.num_attention_heads == published["heads"]
    if entry.config["model_type"] not in ("falcon", "deepseek_v2", "deepseek_v3"):
        assert getattr(config, "num_key_value_heads", published["heads"]) == published["kv_heads"]


def assert_stated(count: int, stated: str) -> None:
    """`count` is within one unit of the last digit of a stated size: papers cut as often as they round."""
    digits = stated.removesuffix("B")
    unit = 10 ** -len(digits.partition(".")[2])
    assert abs(count / 1e9 - float(digits)) < unit


def test_the_model_without_a_class_of_its_own_has_the_size_its_paper_states() -> None:
    entry = known("deepseek-moe-16b")
    attention = 4 * 2048 * 2048
    dense = 3 * 2048 * 10944
    mixture = (64 + 2) * 3 * 2048 * 1408 + 64 * 2048
    norms = 28 * 2 * 2048 + 2048
    count = 28 * attention + dense + 27 * mixture + norms + 2 * 102400 * 2048
    assert_stated(count, entry.published["parameters_stated"])


def test_config_of_gemma_3_27b_is_counted_with_the_small_vocabulary() -> None:
    entry = known("gemma-3-27b")
    padded = entry.published["parameters"] + (262208 - 262144) * entry.config["hidden_size"]
    assert padded == 27_009_346_304


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("gpt2", "gpt2"),
        ("LLAMA-2-70B", "llama-2-70b"),
        ("llama_2 70b", "llama-2-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("Llama-2-70b-HF", "llama-2-70b"),
        ("  llama-2-70b ", "llama-2-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("Mistral 7B", "mistral-7b-v0.1"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("code-llama-34b", "llama-2-34b"),
    ],
)
def test_find_takes_the_spellings_people_use(asked: str, name: str) -> None:
    assert known(asked).name == name


@pytest.mark.parametrize("asked", ["", "llama", "llama-27b", "someone/gpt2", "gpt2/config.json", "-hf"])
def test_find_does_not_guess(asked: str) -> None:
    assert find(asked) is None


def test_nearest_names_for_a_typing_error() -> None:
    assert nearest("lama-2-70b")[0] == "llama-2-70b"
    assert nearest("gemma3-1b")[0] == "gemma-3-1b"
    assert len(nearest("llama", count=2)) <= 2
    assert nearest("zzzz") == []


def test_every_entry_is_found_by_all_its_names_and_no_other_claims_them() -> None:
    claimed: dict[str, str] = {}
    for entry in census():
        assert entry.name == entry.name.lower().replace("_", "-")
        for spelling in (entry.name, *entry.aliases):
            assert known(spelling) is entry, spelling
            assert claimed.setdefault(spelling.lower(), entry.name) == entry.name
        assert entry.sources
        assert entry.config["model_type"]
        assert 2017 < entry.year < 2027
        assert entry.month is None or 1 <= entry.month <= 12


def test_exact_totals_name_their_source() -> None:
    exact = [entry for entry in census() if "parameters" in entry.published]
    assert len(exact) >= 59
    assert all(entry.published["parameters_source"] for entry in exact)


def test_the_census_is_read_in_a_few_milliseconds() -> None:
    durations = []
    for _ in range(7):
        census.cache_clear()
        start = time.perf_counter()
        census()
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.010  # about 1.5 ms on an idle core; this catches a slip of an order, not noise
