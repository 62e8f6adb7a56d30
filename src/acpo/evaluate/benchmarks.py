r"""The benchmarks, as data. Adding one is adding an entry to `BENCHMARKS`."""

import difflib
from dataclasses import dataclass
from enum import StrEnum

from acpo.errors import ACPOError


class Judge(StrEnum):
    """Which verifier decides, and therefore which fields a row has."""

    MATH = "math"
    CODE = "code"


MATH_PROMPT = (
    "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
)
CODE_PROMPT = (
    "Write a Python solution to the following two problems. The solution of the second one calls "
    "the first.\n\n```python\n{raw_problem}\n{new_problem}\n```\n\n"
    "Answer with one Python code block that holds both functions, complete, and the imports they "
    "need."
)


@dataclass(frozen=True)
class Source:
    """A file in a public repository, at a commit.

    Attributes:
        repository: `owner/name` on GitHub.
        commit: The full hash.
        path: The file in that repository: JSON Lines, or one JSON array.
    """

    repository: str
    commit: str
    path: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: What `--benchmarks` calls it.
        title: What tables call it.
        judge: The verifier.
        k: Samples per question unless the user says otherwise.
        prompt: Format string over the fields of a row.
        rows: Number of questions; None for a user's own file, as is `checksum`.
        checksum: Of what is asked and what is expected (see `acpo.evaluate.data.checksum`).
        source: Where the rows come from when no `--data-dir` holds them.
        cut: Text that ends every question of the source and belongs to its prompt template.
    """

    name: str
    title: str
    judge: Judge = Judge.MATH
    k: int = 8
    prompt: str = MATH_PROMPT
    rows: int | None = None
    checksum: str | None = None
    source: Source | None = None
    cut: str | None = None


_NEMO = ("NVIDIA/NeMo-Skills", "0b012df8a09cd4730d31b16e90a0d8f13d145fb8")
_ENTRIES = (
    Benchmark(
        "aime24",
        "AIME24",
        rows=30,
        checksum="f08c5242f0eaf7391b83e6b70c610e9d24a210e816c5bf2f43f6a371e99eac6d",
        source=Source(*_NEMO, "nemo_skills/dataset/aime24/test.txt"),
    ),
    Benchmark(
        "aime25",
        "AIME25",
        rows=30,
        checksum="24d4b6b1ff13fb6292361577a91fcbf68f3904d249e2e23ebfc92d53715b4c0d",
        source=Source(*_NEMO, "nemo_skills/dataset/aime25/test.txt"),
    ),
    Benchmark(
        "math500",
        "MATH500",
        rows=500,
        checksum="127c95d115a218d75497eba38bd2a4e9de862a1cd2525a3fc4422c148dfb3d57",
        source=Source(
            "hkust-nlp/simpleRL-reason",
            "cf1c7858bfc145a27aa733e75d930d34f0d318a6",
            "examples/simplelr_math_eval/data/math500/test.jsonl",
        ),
    ),
    Benchmark(
        "hmmt25",
        "HMMT25",
        rows=30,
        checksum="6618090f391b7d92e11adb18f61dd8833463f55f849fe96187b5b655fd95b448",
        source=Source(
            "jianzhnie/LLMEval",
            "66572ad3f66078c376d777866f6535d3f334b0c8",
            "data/hmmt25.jsonl",
        ),
        cut="\nPlease reason step by step, and put",
    ),
    Benchmark(
        "beyondaime",
        "BeyondAIME",
        rows=100,
        checksum="de5030d72fbe493224a0893e3dbdbe27e4ac54b6ae02848999c46af98a42fc08",
        source=Source(
            "zai-org/glm-simple-evals",
            "2974f4ef150808745edd4a7aef3dc589f54b53f7",
            "data/aime/beyond_aime.jsonl",
        ),
    ),
    Benchmark(
        "humaneval_pro",
        "HumanEval Pro",
        judge=Judge.CODE,
        k=1,
        prompt=CODE_PROMPT,
        rows=164,
        checksum="04037ad448af2282bf20b65ba8588545bcbe95c3beb97691ba569ffcf0fe4518",
        source=Source(
            "CodeEval-Pro/CodeEval-Pro",
            "36f292eafc597b38535fbc8b4aafea8e5c654e3c",
            "dataset/humaneval_pro.json",
        ),
    ),
    Benchmark(
        "gsm8k",
        "GSM8K",
        k=1,
        rows=1319,
        checksum="78a0c875a4f9579ab3f94223da10fba88ee39faad5465cc4011990e80acabd6b",
        source=Source(
            "openai/grade-school-math",
            "3101c7d5072418e28b9008a6636bde82a006892c",
            "grade_school_math/data/test.jsonl",
        ),
    ),
)
BENCHMARKS = {entry.name: entry for entry in _ENTRIES}
# The columns of the paper's table, in its order.
PAPER = ("aime24", "aime25", "math500", "hmmt25", "beyondaime", "humaneval_pro")


class UnknownBenchmarkError(ACPOError):
    """A name that is neither a benchmark nor a JSONL file."""


def benchmark(name: str) -> Benchmark:
    """The declared benchmark of that name.

    Raises:
        UnknownBenchmarkError: There is none; the nearest name is suggested.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    folded = name.lower().replace("-", "").replace("_", "")
    spellings = {known.replace("_", ""): known for known in BENCHMARKS}
    near = difflib.get_close_matches(folded, spellings, n=1, cutoff=0.4)
    hint = f"did you mean {spellings[near[0]]!r}? " if near else ""
    raise UnknownBenchmarkError(
        f"benchmark {name!r} is unknown: {hint}Known are {', '.join(BENCHMARKS)}, "
        "or the path of a .jsonl file"
    )
