"""What the documents say, computed from the files they cite: (document, file, texts).

To add a claim: write a function from the file's content to the texts that follow from it.
"""

import csv
import io
import json
import re
import statistics
import sys

from acpo.compare.runner import progress
from acpo.compare.statistics import mean_over_seeds
from acpo.compare.study_file import read_study
from acpo.objectives import METHODS
from acpo.verify.digits import in_digits
from acpo.verify.extract import extract_answer
from docs.pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from vllm_draw import late, trained

sys.path.pop(0)  # modules there have the names of folders here

TINY = "results/compare/tiny/summary.json"
GSM8K = "results/compare/qwen2.5-0.5b-gsm8k"
LAW = "results/compare/law-0.1m"
SCORE_ROWS = ("score_normalised", "score_baseline")
PERCENT = "{:.1f}%"
CLAIMS = []


def claim(document, file):
    def add(function):
        CLAIMS.append((document, file, function))
        return function

    return add


def load(file):
    text = (ROOT / file).read_text()
    if file.endswith(".json"):
        return json.loads(text)
    if file.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    if file.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text)))
    return text.replace("\\", "")


def percent(estimate, form="{:.1f}", keys=("value", "low", "high"), scale=100):
    """A share with its interval, as accuracies are written."""
    value, low, high = (form.format(scale * float(estimate[key])) for key in keys)
    return f"{value} [{low}, {high}]"


def points(estimate):
    return percent(estimate, "{:+.1f}")


@claim("README.md", "results/quickstart.json")
def quickstart_in_short(r):
    gains, seconds = [run["gain_points"] for run in r["runs"]], r["train_seconds_max"]
    return [f"rose by {min(gains):.0f} to {max(gains):.0f} points in {seconds:.0f} s"]


@claim("docs/quickstart.md", "results/quickstart.json")
def quickstart_table(r):
    return [
        f"| {run['seed']} | {percent(run['before'], PERCENT)} | {percent(run['after'], PERCENT)} | "
        f"{run['gain_points']:+.1f} | {run['train_seconds']:.0f} s | "
        f"{run['train_cpu_seconds']:.0f} s |"
        for run in r["runs"]
    ]


def updates(r):
    now, before = r["rows"], r["before"]["rows"]
    return [row["acpo"]["seconds"] for row in (*now, *before)], [
        row["acpo"]["peak_gib"] for row in now
    ]


@claim("README.md", "results/update_compiled_h200.json")
def compiled_update(r):
    (a, b, c, d), (m, n) = updates(r)
    return [
        f"compiled {a:.2f} s at {m:.1f} GiB with gradient checkpointing, {b:.2f} s at {n:.0f} GiB "
        f"without; before, in the same run, {c:.2f} s and {d:.2f} s",
        f"{r['size']['completions']} completions",
    ]


@claim("README.md", "results/update_trl_h200.json")
def update_beside_trl(r):
    rows = {(row["variant"], row["gradient_checkpointing"]): row for row in r["rows"]}
    plain, saving = rows["paper", False], rows["paper", True]
    worst = rows["equal lengths", True]["speedup"], rows["equal lengths", False]["speedup"]
    cosine = min(row["gradient_cosine"] for row in rows.values())

    def beside(row, digits):
        ours, trl = row["acpo"], row["trl"]
        return (
            f"{ours['seconds']:.2f} s against {trl['seconds']:.1f} s: {row['speedup']:.1f}x, at "
            f"{ours['peak_gib']:.{digits}f} against {trl['peak_gib']:.{digits}f} GiB"
        )

    return [
        f"(micro-batches of {plain['trl']['micro_batch']}) | with checkpointing "
        f"{beside(saving, 1)}; without it {beside(plain, 0)}; our worst case, no zero-variance "
        f"groups and all completions equally long, {worst[0]:.1f}x and {worst[1]:.1f}x; cosine of "
        f"the gradients {cosine:.5f}",
        f"{100 * plain['silent_rows']:.1f}% in zero-variance groups",
    ]


@claim("README.md", "results/step.json")
def whole_step(r):
    rows = {row["engine"]: row for row in r["rows"]}
    size = r["size"]

    def beside(ours, trl):
        ours, trl = rows[ours]["seconds"], rows[trl]["seconds"]
        return f"{ours:.1f} s", f"against {trl:.1f} s", f": {trl / ours:.1f}x"

    static, vllm = beside("acpo-static", "trl-generate"), beside("acpo-vllm", "trl-vllm")
    version = rows["acpo-vllm"]["environment"]["packages"]["vllm"]
    return [
        f"{size['prompts'] * size['group']} completions sampled, judged and trained on in "
        f"{size['updates']} updates | {static[0]} with `sampler: static` {static[1]} of "
        f"stock TRL with `generate`{static[2]}; both on vLLM {version}, {' '.join(vllm[:2])}"
        f"{vllm[2]}"
    ]


@claim("docs/compare.md", "results/step.json")
def seconds_of_a_step(r):
    names = {
        "trl-generate": "stock TRL {trl}, `generate`",
        "trl-vllm": "stock TRL {trl}, vLLM",
        "acpo-generate": "acpo, `generate` (a day earlier)",
        "acpo-vllm": "acpo, vLLM",
        "acpo-static": "acpo, `sampler: static`",
    }
    parts = ("sampling", "scoring", "rewards", "update")
    rows = {row["engine"]: row for row in r["rows"]}
    here, stock = (
        rows[name]["seconds"] - rows[name]["parts"]["sampling"]
        for name in ("acpo-vllm", "trl-vllm")
    )
    return [f"all else takes {here:.1f} s here and {stock:.1f} s in stock TRL"] + [
        f"| {names[row['engine']].format(trl=row['environment']['packages']['trl'][:-2])} | "
        + " | ".join(f"{row['parts'][part]:.1f}" for part in parts)
        + f" | {row['seconds']:.1f} |"
        for row in r["rows"]
    ]


@claim("docs/method-rows.md", "results/head_simko_h200.json")
def simko_cost(r):
    def ms(size, row):
        return f"{r[size][row + ', float32 logits']['ms']:.1f}"

    large, small = "N=8192 H=4096", "N=16384 H=1024"
    return [
        f"took {ms(large, 'simko')} ms where `sapo` took {ms(large, 'sapo')} (8,192 tokens, "
        f"H=4096) and {ms(small, 'simko')} where it took {ms(small, 'sapo')} (16,384 tokens, "
        "H=1024)"
    ]


@claim("docs/training.md", "results/update_compiled_h200.json")
def compiled_option(r):
    (a, b, c, d), _ = updates(r)
    return [
        f"takes {a:.2f} s instead of {c:.2f} s with gradient checkpointing and {b:.2f} s instead "
        f"of {d:.2f} s without"
    ]


@claim("docs/settings.md", "results/update_compiled_h200.json")
def measured_updates(r):
    (a, b, _, _), (m, n) = updates(r)
    return [f"| {a:.2f} s | {m:.1f} GiB |", f"| {b:.2f} s | {n:.0f} GiB |"]


@claim("README.md", "results/sampling.json")
def sampling(r):
    static, generate = r["static"]["tokens_per_second"], r["generate"]["tokens_per_second"]
    setting = r["setting"]
    return [
        f"rollout of {setting['rows']} x {setting['tokens']} tokens",
        f"{round(static, -3):,} tokens/s, {r['speedup']:.2f}x the version before, the same tokens; "
        f"`generate` {round(generate, -3):,}",
    ]


@claim("docs/settings.md", "results/sampling.json")
def measured_sampling(r):
    static = r["static"]
    return [f"{round(static['tokens_per_second'], -3):,} tokens/s | {static['peak_gib']:.1f} GiB |"]


@claim("README.md", "results/head_h200.json")
def head_in_short(r):
    shape = r["N=8192 H=4096"]
    ours, trl, sparse = (
        shape[name] for name in ("acpo, float32 logits", "TRL fused head", "acpo, sparse 1e-5")
    )
    times, error = ours["ms"] / trl["ms"], trl["error_dh"] / ours["error_dh"]
    return [
        f"{ours['times_floor']:.2f}x the three bare matrix products; ACPO takes {times:.2f} of the "
        f"time TRL's fused head takes for SAPO, with a gradient error {error:.0f} times smaller; "
        f"`sparse=1e-5` {sparse['times_floor']:.2f}x, same error"
    ]


@claim("docs/head.md", "results/head_h200.json")
def head_tables(r):
    lines = []
    for shape in ("N=8192 H=4096", "N=16384 H=1024", "N=4096 H=4096"):
        for name, row in r[shape].items():
            if name != "data":
                errors = [row.get("error_dh"), row.get("error_dW")]
                told = " / ".join(f"{error:.1e}" for error in errors if error is not None)
                figures = f"{row['ms']} | {row['times_floor']} | {row['peak_GiB']}"
                lines.append(
                    f"| {name} | {row['loss']} | {figures} | {told} |".replace("  |", " |")
                )
    growth = r["growth H=4096"].values()
    micro = [row["us_per_token"] for row in growth]
    beside = [row["peak_less_dh_GiB"] for row in growth][2:]
    lines.append(f"stays between {min(micro):.2f} and {max(micro):.2f} µs")
    return [*lines, f"grows from {beside[0]} to {beside[-1]} GiB"]


@claim("docs/head.md", "results/head_h200_again.json")
def head_again(r):
    shapes = ("N=8192 H=4096", "N=4096 H=4096", "N=16384 H=1024")
    a, b, c = (r[shape]["acpo, float32 logits"]["times_floor"] for shape in shapes)
    return [f"{a:.2f} and {b:.2f} at H=4096 and {c:.2f} at H=1024"]


@claim("docs/head.md", "results/head_attempts_h200.json")
def attempts_at_the_floor(r):
    def row(name, told=None):
        cells = []
        for shape in ("N=8192 H=4096", "N=16384 H=1024"):
            (found,) = (a for a in r[shape] if a["attempt"] == name)
            cells.append(f"{found['times_floor']:.2f}")
        return f"| {told or name} | {' | '.join(cells)} |"

    first, last = (row(name).split("|")[2:4] for name in ("as it is", "as it is, again"))
    drift = [f"{a.strip()} to {b.strip()}" for a, b in zip(first, last, strict=True)]
    chunks = [row(f"chunks of {n} rows") for n in (64, 128, 512, 2048, 4096)]
    capped = [row(f"capped at {n}, keeps all") for n in (66, 44)]
    streams = [row(f"streams, chunks of {n}") for n in (2048, 4096)]
    return [f"| as it is, first to last | {' | '.join(drift)} |", *chunks, *capped, *streams]


@claim("docs/head.md", "results/head_now_h200.json")
def head_before_and_now(now):
    shapes = ("N=8192 H=4096", "N=16384 H=1024")
    then, since = (
        [f"{r[shape]['acpo, float32 logits']['ms']:.1f}" for shape in shapes]
        for r in (now["before"], now)
    )
    return [f"{then[0]} ms and {since[0]} ms at H=4096, {then[1]} ms and {since[1]} ms at H=1024"]


@claim("docs/head.md", "results/head_cpu.json")
def head_on_a_cpu(r):
    (shape,) = r["cpu"].values()
    ours, dense = shape["acpo"], shape["dense torch"]
    return [
        f"took {ours['seconds']:.1f} s where dense torch took {dense['seconds']:.1f} s, and "
        f"{ours['peak_MiB']:.0f} MiB where it took {dense['peak_MiB']:,.0f}"
    ]


def hand(r):
    pairs = r["hand-judged pairs (tests/verify/pairs.txt)"]
    bare = pairs["bare math-verify"]
    return pairs, pairs["acpo"], bare


@claim("README.md", "results/verify.json")
def verdicts_in_short(r):
    pairs, ours, bare = hand(r)
    must = r["requirements"]
    integers = must["integers: times bare in 1 process"]["measured"]
    wrong = must["wrong answers: times bare in 1 process"]["measured"]
    assert ours["wrong answers accepted"] == 0
    return [
        f"{integers:.0f}x / {wrong:.0f}x; of {pairs['pairs']:,} answers judged by hand "
        f"{ours['as judged by hand']:,} agree and no wrong one is accepted (math-verify: "
        f"{bare['as judged by hand']}, {bare['wrong answers accepted']} accepted)"
    ]


@claim("docs/verify.md", "results/verify.json")
def verdicts(r):
    pairs, ours, bare = hand(r)
    rates = r["verdicts per second of CPU time, median of rounds"]
    table = []
    for workload, row in rates.items():
        cells = [row.get(key) for key in ("acpo", "bare, 1 process", "bare, 2 processes")]
        shown = ["-" if cell is None else f"{cell:,.0f}" for cell in cells]
        table.append(f"| {workload} | {' | '.join(shown)} |")
    code = r["code, wall ms, median over problems of the best of 9"]
    return [
        *table,
        f"{code['acpo']:.0f} ms in the sandbox, {code['python file.py']:.0f} ms as `python "
        f"file.py` and {code['python -I -S file.py']:.0f} ms as",
        f"On {pairs['pairs']:,} answers judged by hand",
        f"{pairs['right']} right and {pairs['pairs'] - pairs['right']} wrong",
        f"{ours['as judged by hand']:,} verdicts are the hand's",
        f"agrees on {bare['as judged by hand']}, misses {bare['right answers missed']} right "
        f"answers and accepts {bare['wrong answers accepted']} wrong ones",
    ]


@claim("docs/evaluate.md", "results/eval.json")
def evaluation_speed(r):
    client, http, overlap = r["client"], r["http"], r["overlap"]["cases"]
    ours = client["ours"]
    theirs = [client[name] for name in client if name.startswith("openai") and name[6:8] != "_v"]
    cpu = [value for row in theirs for value in row["cpu_milliseconds"]]
    share = [value for row in theirs for value in row["share_of_ideal"]]
    over = [case["over_the_slower"] for case in overlap]
    low, high = ours["share_of_ideal"]
    return [
        f"{http['share_of_ideal']} of the ideal {http['ideal_per_second']:,.0f} samples/s",
        f"{ours['cpu_milliseconds'][0]:.2f} ms; with the `openai` package {min(cpu):.1f} to "
        f"{max(cpu):.1f} ms",
        f"(load {client['load_before']}) | {low:.2f} to {high:.2f} of the ideal; with the `openai` "
        f"package {min(share):.2f} to {max(share):.2f}",
        f"| {min(over):.2f} to {max(over):.2f} |",
        f"| {r['decoder']['speedup']:.1f} times the tokens/s |",
        f"batch {r['decoder']['batch_size']}",
    ]


@claim("docs/evaluate.md", "results/data_check_dapo.json")
def overlaps(r):
    known = load("src/acpo/tasks/benchmarks.jsonl")
    titles = {row["name"]: row["title"] for row in known if "title" in row}
    lines = [f"DAPO-Math-17k ({r['training_rows']:,} rows)"]
    for row in r["benchmarks"]:
        figures = f"{row['rows']} | {row['sharing_an_ngram']} | {row['sharing_half']}"
        lines.append(f"| {titles[row['benchmark']]} | {figures} |")
    return lines


@claim("docs/traces.md", "results/trace_cost_h200.json")
def trace_cost(r):
    (shape,) = [value for name, value in r["statistics"].items() if name.startswith("H=4096")]
    row, reading = shape["131072"], r["reading"]
    plain, top = row["statistics"], row["with top 5"]
    return [
        f"run at {round(plain['tokens_per_second'], -3):,} tokens/s "
        f"({round(top['tokens_per_second'], -3):,} with",
        f"in {plain['peak_GiB']:.1f} GiB",
        f"is read in {reading['seconds_every_number']:.2f} s, with token texts and alternatives in "
        f"{reading['seconds_every_column']:.2f} s",
    ]


@claim("docs/view.md", "results/view.json")
def page_size(r):
    short, _, long = r["pages"].values()
    scroll, overview = long["scroll"], r["overview"]
    return [
        f"A page of {short['tokens']:,} tokens has {short['page_mb']:.1f} MB and opens in "
        f"{short['open_s_median']:.2f} s; one of {long['tokens']:,} tokens has "
        f"{long['page_mb']:.1f} MB, opens in {long['open_s_median']:.2f} s and scrolls at "
        f"{scroll['frame_ms_median']} ms per frame, no task longer than "
        f"{scroll['longest_task_cpu_ms']} ms of CPU; the overview of {overview['prompts']:,} "
        f"prompts of 8 completions opens in {overview['open_s_median']:.2f} s"
    ]


@claim("docs/verl.md", "results/verl_scaling.json")
def scaling(r):
    rows = r["estimates"]
    sums = " | ".join(f"{row['memory_total_gb']:.1f}" for row in rows)
    batches = " | ".join(str(row["micro_batches_per_update"]) for row in rows)
    return [f"| sum | {sums} |", f"| micro-batches per update | {batches} |"]


@claim("docs/protocol.md", "results/starts.json")
def start_accuracies(r):
    starts = [f"{100 * row['value']:.1f}%" for name, row in r.items() if name != "environment"]
    return [f"| {' | '.join(starts)} |"]


@claim("docs/verl.md", "results/verl_gpu.json")
def cost_in_verl(r):
    rows, trl = r["verl"]["rows"], r["trl"]["rows"]
    stock = rows["sapo, without the plugin"]
    said = [
        f"completions ({r['verl']['tokens']:,} tokens) in micro-batches of "
        f"{r['verl']['micro_batch_tokens']:,}",
        f"| stock `sapo`, without the plugin | {stock['seconds']:.1f} | "
        f"| {stock['peak_gib']:.1f} | | |",
        f"The same mini-batch takes `ACPOTrainer` {trl['acpo']['seconds']:.2f} s",
    ]
    for name, row in trl.items():
        cost = rows[name]
        said.append(
            f"| `{name}` | {cost['seconds']:.1f} | {cost['seconds_over_stock']:.2f} "
            f"| {cost['peak_gib']:.1f} | {cost['memory_over_stock']:.2f} | {row['cosine']:.4f} |"
        )
    runs = [row["runs"] for row in rows.values()]
    assert max(max(run) / min(run) for run in runs) < 1.22
    return said


def rollouts_on_vllm(r):
    assert r["environment"]["gpu"].endswith("H200")
    lines = []
    for name, words in (("vllm", "vLLM"), ("static", "`sampler: static`")):
        rates = r[name]["tokens_per_second"]
        lines.append(
            f"| {words}, {r['parameters'] / 1e9:.1f}B | {min(rates):,} to {max(rates):,} | "
            f"{max(r[name]['seconds'][1:]):.1f} | {r['seconds_to_first_rollout'][name]:.0f} |"
        )
    return lines


@claim("docs/vllm.md", "results/vllm_resumed.json")
def killed_and_resumed(r):
    gaps = [f"{row['sampling/sampling_logp_difference/mean']:.4f}" for row in r["curve"]]
    assert r["sleep"] and len(gaps) * r["updates_per_rollout"] == r["updates"] == 16
    before, after = " and ".join(gaps[:2]), " and ".join(gaps[2:])
    return [
        f"update {r['resumed_at']} and its checkpoint",
        f"before is {before}, of the two after",
        after,
    ]


claim("docs/vllm.md", "results/vllm_rollout.json")(rollouts_on_vllm)
claim("docs/vllm.md", "results/vllm_rollout_1.5b.json")(rollouts_on_vllm)


@claim("docs/vllm.md", "results/vllm_gap.json")
def gap(r):
    gap, rows, cosines = r["gap"], r["gap"]["rows"], r["cosines"]
    apart, whole, mode = gap["difference"], gap["sequence_w"], gap["mode"]
    assert r["rounding"]["difference"]["q100"] == 0 == whole["over_cap"]

    def line(key):
        cells = [f"{100 * rows[name][key]:.1f}%" for name in ("sapo", "acpo", "acpo_no_routing")]
        return f" | {' | '.join(cells)} |"

    mended = mode["align_tol"]["0.03"]
    sapo, acpo = (cosines[name]["vllm, vllm sequence_mask"] for name in ("sapo", "acpo"))
    token = [cosines[name]["vllm, vllm token_truncate"] for name in ("sapo", "acpo")]
    noise = [cosines[name]["static 1, static 2"] for name in ("sapo", "acpo")]
    assert [f"{value:.3f}" for value in token] == ["0.999", "0.999"]
    return [
        f"{gap['tokens']:,} tokens of {gap['sequences']} completions",
        f"is {apart['mean']:.4f} in the mean, {apart['q50']:.4f} in the median, "
        f"{apart['q99']:.3f} at the 99th percentile and {apart['q100']:.2f} at most",
        f"between {whole['q50']:.2f} in the median and {whole['q100']:.1f} at most",
        f"share of the completions is {whole['effective_share']:.2f}",
        f"{100 * mode['aligned_to_mismatched']:.2f}% are vLLM's mode and not the trainer's, "
        f"{100 * mode['mismatched_to_aligned']:.2f}% the other",
        f"behind by less than {mode['lost_margin']['q50']:.3f}",
        line("update_change_sampler_statistics"),
        line("update_change_sampler_ratio"),
        f"`sequence_mask`{line('update_change_correction')}",
        f"would count {100 * mended['mended']:.0f}% of the lost modes as modes, and with them "
        f"{100 * mended['swallowed']:.1f}% of the tokens",
        f"is {sapo:.3f} (`sapo`) and {acpo:.3f} (`acpo`) for `sequence_mask`, 0.999 for "
        f"`token_truncate`, on {r['gradient_rows']} completions",
        f"a cosine of {noise[0]:.2f} and {noise[1]:.2f}",
    ]


def shown(found):
    return f"{100 * found.value:.1f}% [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def one_on_vllm(r):
    """A row of the table of training on vLLM, and how the gap went."""
    run = trained(ROOT / "results")[r["method"]]
    on_vllm, static = late([run["vllm"]]), late(run["static"])
    assert on_vllm.low < static.high and static.low < on_vllm.high and r["updates"] == 100
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in r["curve"]]
    return [f"| {shown(on_vllm)} | {shown(static)} |"], gaps[0], gaps[-1]


@claim("docs/vllm.md", "results/vllm_train_acpo.json")
def acpo_on_vllm(r):
    row, first, last = one_on_vllm(r)
    return [*row, f"(`acpo`: {first:.4f} at the first rollout, {last:.4f} at the last;"]


@claim("docs/vllm.md", "results/vllm_train_sapo.json")
def sapo_on_vllm(r):
    row, first, last = one_on_vllm(r)
    run = trained(ROOT / "results")["sapo"]
    each = [late([curve]).value for curve in run["static"]]
    below = [100 * (x - late([run["vllm"]]).value) for x in (late(run["static"]).value, min(each))]
    return [
        *row,
        f"`sapo`: {first:.4f}, {last:.4f})",
        f"is {below[0]:.1f} points below the mean of the four and {below[1]:.1f} below the lowest",
    ]


@claim("docs/vllm.md", "results/vllm_evaluate.json")
def evaluated_on_vllm(r):
    both, other = (r["gsm8k_test"], r["math500"]), r["transformers"]

    def cells(form, key):
        return " | ".join(form(row[key]) for row in both)

    def right(x):
        return percent(x, "{:.1f}").replace(" ", "% ", 1)

    return [
        f"| right | {cells(right, 'mean')} |",
        f"| {cells(lambda x: PERCENT.format(100 * x), 'truncated')} |",
        f"| {cells('{:.0f}'.format, 'samples_per_second')} |",
        f"first {other['samples']} questions at {other['samples_per_second']:.1f} per second",
        f"{right(other['mean'])} of them are right",
    ]


@claim("docs/results.md", TINY)
def tiny_study(r):
    task = r["tasks"]["main"]
    rows = {row["name"]: row for row in task["rows"]}
    assert not [name for name, row in rows.items() if row["verdict"] == "better"]
    page = (ROOT / "docs/results.md").read_text().partition("\n### Rates chosen")[0]
    written = re.findall(r"^\| `(\w+)`.*\[.*\|$", page, re.M)
    table = []
    for name in written:
        difference = rows[name]["difference"]
        told = f" {points(difference)} |" if difference else " |"
        table.append(f"| {percent(rows[name]['accuracy'])} |{told}")
    values = [f"{100 * value:.1f}" for value in rows["acpo"]["values"].values()]
    stable = differences(rows["global_sg"], rows["acpo"])
    lowest = [
        100 * min(rows[f"{name}_balanced"]["values"].values()) for name in ("acpo", "global_sg")
    ]
    return [
        *table,
        f"end at {', '.join(values[:-1])} and {values[-1]}",
        f"The model starts at {100 * task['start']['value']:.1f}%",
        f"GRPO gains {100 * rows['grpo']['gain']['value']:.1f} points",
        f"is {points(rows['acpo']['to_control'])}: inside the noise",
        "ends above it by {:.1f} points [{:+.1f}, {:+.1f}], not told apart".format(
            *(100 * stable[key] for key in ("value", "low", "high"))
        ),
        f"Holm's p, which allows for {task['comparisons']} comparisons, is "
        f"{rows['acpo']['p_holm']:.2f}",
        f"(lowest {lowest[0]:.1f} and {lowest[1]:.1f})",
    ]


@claim("docs/results.md", "results/compare/tiny-long/summary.json")
def tiny_with_long_sweeps(r):
    rows = {row["name"]: row for row in r["tasks"]["main"]["rows"]}
    sapo, acpo, grpo, balanced = (rows[name] for name in ("sapo", "acpo", "grpo", "acpo_balanced"))
    first = {row["name"]: row for row in load(TINY)["tasks"]["main"]["rows"]}
    rates = sorted({one for row in rows.values() for one in row["sweep"]}, key=float)
    lines = []
    for row in rows.values():
        best = max(row["sweep"].values())
        swept = [
            ("**{:.1f}**" if row["sweep"][one] == best else "{:.1f}").format(
                100 * row["sweep"][one]
            )
            if one in row["sweep"]
            else ""
            for one in rates
        ]
        ours = " (ours)" if row["name"] in ("acpo_balanced", *SCORE_ROWS) else ""
        apart = f" {points(row['difference'])} " if row["difference"] else " "
        cells = " | ".join(swept).replace("  ", " ")
        lines.append(f"| `{row['name']}`{ours} | {cells} | {percent(row['accuracy'])} |{apart}|")
    assert acpo["verdict"] == "worse" and acpo["difference"]["won"] == acpo["collapsed"] == 0
    assert grpo["verdict"] == "not told apart" and balanced["difference"]["won"] == 1
    assert sapo["values"] == first["sapo"]["values"]
    better = grpo["accuracy"]["value"] - first["grpo"]["accuracy"]["value"]
    ahead = sapo["sweep"]["0.0001"] - acpo["sweep"]["0.0001"]
    scored = [rows[name] for name in SCORE_ROWS]
    for row in scored:
        assert row["verdict"] == "better" and row["difference"]["won"] == 8
        assert row["learning_rate"] == sapo["learning_rate"]
        assert all(row["sweep"][one] > value for one, value in sapo["sweep"].items())
    areas = [
        percent(row["difference"]["area"]).replace(" ", form, 1)
        for row, form in zip(scored, (" points ", " "), strict=True)
    ]
    lost = acpo["difference"]
    return [
        *lines,
        f"ends {-100 * lost['value']:.1f} points below SAPO "
        f"[{100 * lost['low']:.1f}, {100 * lost['high']:.1f}]",
        f"on the quickstart's model, {above(scored[0])}",
        "(p {:.3f} and {:.3f})".format(*(row["p_holm"] for row in scored)),
        f"ahead of it in area by {' and '.join(areas)}",
        f"SAPO is {100 * ahead:.1f} points ahead of it in the sweep",
        f"is {100 * better:.1f} points better than there",
        f"read alone (Holm's p {balanced['p_holm']:.3f})",
    ]


@claim("docs/results.md", "results/compare/tiny-long/runs.jsonl")
def tiny_with_long_sweeps_runs(runs):
    swept = {}
    for run in runs:
        if (run["spec"]["phase"], run["spec"]["row"]) == ("sweep", "acpo"):
            curve = [entry["accuracy"] for entry in run["curve"]]
            last = statistics.fmean(curve[-(len(curve) // 4) :])
            swept.setdefault(run["spec"]["learning_rate"], []).append(last)
    assert all(sum(end < 0.02 for end in swept[rate]) == 1 for rate in (2e-4, 4e-4))
    middle = {rate: 100 * statistics.median(ends) for rate, ends in swept.items()}
    assert max(middle, key=middle.get) == 4e-4
    (early,) = [row for row in load(TINY)["tasks"]["main"]["rows"] if row["name"] == "acpo"]
    assert early["learning_rate"] == 4e-4
    assert sum(end < 0.25 for end in early["values"].values()) == 4 == len(early["values"]) / 2
    return [
        f"({len(runs)} runs, half an hour",
        f"4e-4 again ({middle[4e-4]:.1f}, against {middle[1e-4]:.1f} at 1e-4)",
    ]


def above(row):
    gain = row["difference"]
    return f"by {100 * gain['value']:.1f} [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"


def acpo_with_a_long_sweep(r):
    (row,) = [row for row in r["tasks"]["main"]["rows"] if row["name"] == "acpo"]
    return row


@claim("README.md", "results/compare/tiny-long/summary.json")
def below_with_a_long_sweep(r):
    lost = acpo_with_a_long_sweep(r)["difference"]
    rows = {row["name"]: row for row in r["tasks"]["main"]["rows"]}
    return [
        ", ".join(f"`{name}` {above(rows[name])}" for name in SCORE_ROWS),
        f"ends {-100 * lost['value']:.1f} points below SAPO "
        f"[{100 * lost['low']:.1f}, {100 * lost['high']:.1f}]",
    ]


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


@claim("docs/results.md", "results/law/law.md")
def sure_starts(text):
    """What varies within groups, and the registered claims."""
    text, _, _ = text.partition("## At SAPO's update lengths")
    cells = [[cell.strip() for cell in row.split("|")]
             for row in re.findall(r"^\| law-\S+ \| \S+ \| \w+ \|(.*)\|$", text, re.M)]  # fmt: skip
    assert len(cells) == 15 and all("+-" in cell for row in cells for cell in row[5:])
    assert "| acpo | fixed | global_sg_x3 | grpo | score_baseline | score_normalised |" in text
    gained = max(cells, key=lambda row: float(row[-1].split()[0]))
    least = min(float(row[4]) for row in cells)
    assert float(gained[4]) == least >= 0.2
    above = sorted({f"{float(row[1]):.2f}" for row in cells if float(row[1]) >= 0.1})
    lost = sorted(cells[:10], key=lambda row: float(row[5].split()[0]))
    assert all(float(row[1]) >= 0.1 for row in lost[:2])
    count = re.search(
        r"delta below 0.1: (\d+) settings, (\d) below SAPO, 0 above, (\d) not told apart", text
    )
    assert "delta from 0.1: 4 settings, 3 below SAPO" in text
    ranks = dict(
        re.findall(r"^- (\w+): benefit .* correlation (\S+, one-sided p \S+)\.$", text, re.M)
    )
    ours, other = (ranks[name].split(", one-sided p ") for name in SCORE_ROWS)
    answers = re.findall(r"^\| \w+ \| no rule; .*\| (\d\.\d+) \|  \|  \|$", text, re.M)
    assert len(answers) == 6
    return [
        f"smallest ({least:.2f}) where it gains most",
        f"three of four settings from there on\n({' and '.join(above)})",
        f"of {count[1]} such settings {count[2]} are below SAPO and {count[3]} are not told apart",
        f"correlation is {ours[0]} (one-sided p {ours[1]})",
        f"for `score_baseline` {other[0]} ({other[1]})",
        f"the smallest p is {min(answers)}",
    ]


def law_rows(r, name, ratio):
    """By start: one row of study L."""
    tasks = {task[1:].rpartition("-"): found for task, found in r["tasks"].items()}
    return {
        start: next(row for row in found["rows"] if row["name"] == name)
        for (start, _, of), found in tasks.items()
        if of == ratio
    }


def law_matched(r, ratio):
    """Rows at SAPO's update lengths, by start and name."""
    return {
        name[1:].removesuffix(f"-{ratio}"): {row["name"]: row for row in task["matched"]}
        for name, task in r["tasks"].items()
        if name.endswith(ratio) and any(row["difference"] for row in task.get("matched", ()))
    }


@claim("docs/results.md", "results/compare/law-carry/summary.json")
@claim("docs/results.md", "results/compare/law-1m/summary.json")
@claim("docs/results.md", f"{LAW}/summary.json")
def settings_by_row(_):
    """In how many settings of study L each row is above or below SAPO."""
    lines = []
    for name, title in STUDY_L_ROWS.items():
        cells = ""
        for rows, settings in zip(law_everywhere(name), (15, 14), strict=True):
            assert len(rows) in (settings, 0)
            cells += "".join(f" {in_how_many(rows, *side)} |".replace("  ", " ") for side in SIDES)
        lines.append(f"| `{name}`{title} |{cells}")
    own, matched = law_everywhere(SCORE_ROWS[0])
    gains, left = ([f"{100 * row['difference']['value']:.1f}" for at, row in rows if at == "0.5"]
                   for rows in (own, matched))  # fmt: skip
    fallen, lowest = ([100 * min(rows[at][1]["values"].values()) for at in places]
                      for rows, places in ((own, (0, 5, 11)), (matched, (0, 4, 10))))  # fmt: skip
    base, _ = law_everywhere("sapo")
    times = {own[at][1]["learning_rate"] / base[at][1]["learning_rate"] for at in (0, 5, 11)}
    assert times == {2, 4}
    return [
        "\n".join(lines),
        "by {} and {} points on chains, {} on sums and {} at 1 M".format(*gains),
        "of that {}, {}, {} and {} are left in SAPO's steps".format(*left),
        "its lowest end at {:.1f}, {:.1f} and {:.1f}%".format(*fallen),
        "they end at {:.1f}, {:.1f} and {:.1f}%".format(*lowest),
    ]


STUDY_L_ROWS = {
    SCORE_ROWS[0]: " (ours)",
    SCORE_ROWS[1]: " (ours)",
    "fixed": ", a control of the paper",
    "grpo": "",
    "acpo": "",
    "global_sg_x3": ", a control",
}
SIDES = ((1, "better"), (-1, "worse"))


def in_how_many(rows, sign, verdict):
    """Of settings, by plain intervals and by Holm; nothing of a row without runs there."""
    bounds = [sign * row["difference"][end] for _, row in rows for end in ("low", "high")]
    plain = sum(min(pair) > 0 for pair in zip(bounds[::2], bounds[1::2], strict=True))
    settled = sum(row["verdict"] == verdict for _, row in rows)
    return f"{plain} ({settled})" if plain else "0" if rows else ""


@claim("docs/results.md", "results/compare/law-1m/runs.jsonl")
def larger_model_runs(runs):
    return ["[{} of {}](".format(*runs_of("law-1m", runs)).replace(" runs", "")]


@claim("docs/results.md", "results/compare/law-carry/runs.jsonl")
def carry_runs(runs):
    return [f"[{runs_of('law-carry', runs)[0]}]("]


def law_everywhere(name):
    """A row over the settings of study L, by start: at rates of its own, and at SAPO's lengths."""
    own, matched = [], []
    for study in ("law-0.1m", "law-carry", "law-1m"):
        r = load(f"results/compare/{study}/summary.json")
        for ratio in ("eight", "four"):
            found = law_rows(r, name, ratio).items()
            own += [(start, row) for start, row in found if row["values"]]
            for start, rows in law_matched(r, ratio).items():
                matched += [(start, rows[name])] if name in rows else []
    return own, matched


LONG = "results/compare/law-long"
TASKS_OF_LAW = {"": "chains", "carry-": "sums with a carry"}


def long_rows(r):
    """By task and start: the rows of study L whose rates were chosen over whole runs."""
    found = {}
    for name, task in r["tasks"].items():
        of, start = re.fullmatch(r"(carry-)?e([\d.]+)-eight", name).groups()
        rows = {row["name"]: row for row in task["rows"]}
        assert all(len(row["values"]) == 8 and not row["at_edge"] for row in rows.values())
        found[of or "", start] = rows
    return dict(sorted(found.items(), key=lambda entry: (entry[0][0], float(entry[0][1]))))


@claim("docs/results.md", f"{LONG}/summary.json")
def starts_with_long_sweeps(r):
    lines = []
    for (of, start), rows in long_rows(r).items():
        cells = [f"{rate(rows['sapo']['learning_rate'])} | {interval(rows['sapo']['accuracy'])}"]
        for name in ("acpo", SCORE_ROWS[0]):
            row = rows[name]
            cells.append(f"{rate(row['learning_rate'])} | {interval(row['difference'], '+')}")
        lines.append(f"| {TASKS_OF_LAW[of]} | {start} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


@claim("docs/results.md", f"{LONG}/summary.json")
def starts_with_long_sweeps_told(r):
    """What was asked of them, and what of it the five sentences say."""
    found, ours = long_rows(r), SCORE_ROWS[0]
    above = {place for place, rows in found.items() if rows[ours]["verdict"] == "better"}
    assert {*found} - above == {("", "0.02")} and found["", "0.02"][ours]["difference"]["won"] == 6
    below = [place for place, rows in found.items() if rows["acpo"]["verdict"] == "worse"]
    assert below == [("", "0.2"), ("", "0.5"), ("carry-", "0.5")]
    for rows in found.values():
        assert rows[ours]["collapsed"] == 0
        ahead = [
            (score, rows[ours]["sweep"][rate]) for rate, score in rows["sapo"]["sweep"].items()
        ]
        assert all(theirs < own or max(theirs, own) < 0.01 for theirs, own in ahead)
    rates = {rows[ours]["learning_rate"] for rows in found.values()}
    early = [load(f"results/compare/{study}/summary.json") for study in ("law-0.1m", "law-carry")]
    least, fewest = (law_rows(early[0], ours, "four")[start] for start in ("0.02", "0.2"))
    assert least["learning_rate"] == fewest["learning_rate"] == 8e-4 and rates == {4e-4, 8e-4}
    assert law_rows(early[1], ours, "eight")["0.1"]["learning_rate"] == 1.6e-3
    gains, changes = gains_with_long_sweeps(r)
    losses, largest = [-change for change in changes], gains[-2:]
    ends = [end for rows in found.values() for end in rows["acpo"]["values"].values()]
    lost = sum(end < 0.25 for end in ends)
    return [
        f"by {gains[0]:.1f} to {gains[-1]:.1f}\n   points, all allowing for the rows",
        f"on two tasks, by {min(losses):.1f} to {max(losses):.1f} points, at "
        f"{NUMBERS[len(below)]} of them allowing for the rows",
        f"starts, {largest[0]:.1f} and {largest[1]:.1f} points, and {gains[0]:.1f} to "
        f"{gains[-3]:.1f} elsewhere",
        f"{NUMBERS[lost]} of {len(ends)} end below 25%",
    ]


@claim("docs/results.md", f"{LONG}/runs.jsonl")
def starts_with_long_sweeps_runs(runs):
    assert runs_of("law-long", runs)[1] == f"{len(runs)} runs"
    return [f"({len(runs)} runs, an hour and a half"]


def settings_below():
    """In how many of them ACPO is below SAPO: their number, and by plain intervals and Holm's."""
    shares = []
    for found in law_everywhere("acpo"):
        apart = [row["difference"] for _, row in found]
        assert all(one["low"] <= 0 for one in apart)
        settled = sum(row["verdict"] == "worse" for _, row in found)
        shares.append((len(apart), sum(one["high"] < 0 for one in apart), settled))
    return shares


@claim("README.md", f"{LAW}/summary.json")
def settings_in_short(_):
    settings, below, settled = settings_below()[0]
    gains, losses = gains_with_long_sweeps(load(f"{LONG}/summary.json"))
    return [
        f"ACPO is below SAPO in {below} of {settings} settings ({settled} allowing for the rows)",
        f"above it at {NUMBERS[len(gains)]} (by {min(gains):.1f} to {max(gains):.1f} points, ",
        f"below it at all {NUMBERS[len(losses)]} on average",
    ]


def gains_with_long_sweeps(r):
    """Of our row where it is above SAPO, and ACPO's at every start, in points, least first."""
    rows = long_rows(r).values()
    won = [own for found in rows if (own := found[SCORE_ROWS[0]])["verdict"] == "better"]
    lost = [found["acpo"] for found in rows]
    return (sorted(100 * row["difference"]["value"] for row in part) for part in (won, lost))


@claim("docs/results.md", f"{LAW}/summary.json")
def settings_told(_):
    (own, below, settled), (matched, below_too, settled_too) = settings_below()
    least = [row for start, row in law_everywhere(SCORE_ROWS[0])[1] if start == "0.5"]
    assert len(least) == 4 and all(row["verdict"] == "better" for row in least)
    gains = [100 * row["difference"]["value"] for row in least]
    return [
        f"it is below in {below} of {own} settings ({settled} allowing for the rows)\n   and, in "
        f"steps as long as SAPO's, in {below_too} of {matched} ({settled_too}) (",
        f"by {min(gains):.1f} to {max(gains):.1f} points, allowing for the rows",
    ]


def runs_of(name, runs):
    study = read_study(ROOT / f"recipes/studies/{name}.yaml", {})
    whole = progress(study, {run["run"]: run for run in runs})
    assert whole.done == len(runs)
    return f"{len(runs):,}", f"{whole.runs:,} runs"


@claim("docs/results.md", f"{LAW}/runs.jsonl")
def sure_starts_runs(runs):
    return ["({} of {} in".format(*runs_of("law-0.1m", runs))]


@claim("docs/results.md", f"{GSM8K}/runs.jsonl")
def real_model_runs(runs):
    return ["({} of the study's {}:".format(*runs_of("qwen2.5-0.5b-gsm8k", runs))]


def sweep_lines(task, names):
    rows = {row["name"]: row["sweep"] for row in task["rows"]}
    lines = []
    for name in names:
        best = max(rows[name].values())
        marked = [
            ("**{:.1f}**" if v == best else "{:.1f}").format(100 * v) for v in rows[name].values()
        ]
        lines.append(f"| `{name}` | {' | '.join(marked)} |")
    return lines


def finals(r):
    rows = {row["name"]: row for row in r["tasks"]["four"]["rows"]}
    return rows["grpo"], rows["acpo"], rows["sapo"]


def interval(x, sign=""):
    return f"{100 * x['value']:{sign}.1f} [{100 * x['low']:{sign}.1f}, {100 * x['high']:{sign}.1f}]"


def final_line(row):
    seeds = [f"{100 * value:.1f}" for value in row["values"].values()] + ["missing"] * row[
        "missing"
    ]
    apart = f" {interval(row['difference'], '+')}" if row["difference"] else ""
    ours = " (ours)" if row["name"] in SCORE_ROWS else ""
    return (
        f"| `{row['name']}`{ours} | {rate(row['learning_rate'])} | {', '.join(seeds)} | "
        f"{interval(row['accuracy'])} | {interval(row['gain'], '+')} |{apart} | "
        f"{interval(row['area'])} | {interval(row['pass_at']['64'])} |"
    )


def rate(value):
    return f"{value:.0e}".replace("e-0", "e-")


SUMS = "results/compare/qwen2.5-0.5b-arithmetic"
SUMS_BY_VALUE = "results/compare/qwen2.5-0.5b-chain-sum"


@claim("docs/results.md", f"{SUMS}/summary.json")
def sums(r):
    task = r["tasks"]["sums"]
    rows = {row["name"]: row for row in task["rows"]}
    assert not task["unlearnt"] and all(row["collapsed"] == 0 for row in rows.values())
    assert all(row["verdict"] in ("", "not told apart") for row in rows.values())
    acpo, grpo, ours = (rows[name] for name in ("acpo", "grpo", "score_normalised"))
    entropies = (row["ends"]["entropy"]["value"] for row in (acpo, ours, rows["sapo"]))
    solved = [-100 * one["value"] for one in acpo["difference"]["pass_at"].values()
              if one["high"] < 0]  # fmt: skip
    assert len(solved) == 4
    return [
        *map(final_line, rows.values()),
        *sweep_lines(task, ("sapo", "grpo", "score_normalised", "acpo")),
        f"It starts at {interval(task['start'])}",
        f"GRPO {interval(grpo['difference'], '+')}, ACPO {interval(acpo['difference'], '+')}"
        f" and `score_normalised` {interval(ours['difference'], '+')}",
        f"in area ({interval(acpo['difference']['area'], '+').replace(' ', ' points ', 1)}",
        f"Holm's p for its accuracy is {acpo['p_holm']:.3f}",
        "(entropy {:.3f} and {:.3f} against {:.3f})".format(*entropies),
        f"from 4 to 32 samples by {min(solved):.1f} to {max(solved):.1f} points, read alone too",
    ]


@claim("docs/results.md", f"{SUMS}/runs.jsonl")
def sums_runs(runs):
    texts = [text["ends"] for run in runs if run["spec"]["phase"] == "study"
             for text in run["examples"]]  # fmt: skip
    assert all(in_digits(extract_answer(text)) is not None for text in texts)
    assert runs_of("qwen2.5-0.5b-arithmetic", runs) == ("36", "36 runs")
    return ["(36 runs; all but", f"The {len(texts)} answers that"]


@claim("docs/results.md", f"{SUMS_BY_VALUE}/runs.jsonl")
def sums_by_value(runs):
    finals = [run for run in runs if "/study/grpo-lr1e-05" in run["run"]]
    for run in finals:
        curve = [entry["accuracy"] for entry in run["curve"]]
        low = max(place for place, value in enumerate(curve) if value < 0.5)
        assert min(curve[low + 3 :]) > 0.9, "three rollouts are a dozen updates"
    assert len(finals) == 4
    return [
        "{} of {};".format(*runs_of("qwen2.5-0.5b-chain-sum", runs)),
        f"stood at {100 * min(run['accuracy']['value'] for run in finals):.1f}% with each",
    ]


@claim("docs/results.md", f"{SUMS_BY_VALUE}/summary.json")
def sweep_by_value(r):
    (grpo,) = [row for row in r["tasks"]["sums"]["rows"] if row["name"] == "grpo"]
    return [f"where it had ended at {100 * grpo['sweep']['1e-05']:.1f}%"]


@claim("docs/results.md", "results/starts.json")
def start_of_sums(r):
    return [f"chosen by its start of {100 * r['chain_sum_3_3']['value']:.1f}%"]


@claim("docs/results.md", f"{GSM8K}/summary.json")
def real_model(r):
    grpo, acpo, sapo = finals(r)
    lines = list(map(final_line, (grpo, acpo, sapo)))
    area = {k: -100 * v for k, v in acpo["difference"]["area"].items() if k != "seeds"}
    share = acpo["ends"]["positive_share"]["value"]
    task, apart = r["tasks"]["four"], acpo["difference"]
    assert task["unlearnt"] == ["SAPO"] and task["least_gain"] == 0.15
    assert apart["won"] == grpo["difference"]["won"] == 4
    assert acpo["accuracy"]["value"] < grpo["accuracy"]["value"]
    return [
        *lines,
        f"It starts at {interval(task['start'])}",
        f"SAPO gained {100 * sapo['gain']['value']:.1f}",
        f"p is {apart['p_value']:.3f} and {grpo['difference']['p_value']:.3f}",
        f"seven rows, {acpo['p_holm']:.3f} and {grpo['p_holm']:.3f}",
        f"ahead in area by {100 * (grpo['area']['value'] - acpo['area']['value']):.1f} points",
        f"by {area['value']:.1f} points [{area['high']:.1f}, {area['low']:.1f}]",
        f"positive branch at the start and {100 * share:.1f}% in the last quarter",
    ]


@claim("docs/results.md", f"{GSM8K}/summary.json")
def real_model_ours(r):
    task = r["tasks"]["four"]
    (ours,) = [row for row in task["rows"] if row["name"] == "score_normalised"]
    (slow,) = [row for row in load(SLOW)["tasks"]["four"]["rows"] if row["name"] == ours["name"]]
    won, solved = (ours["difference"][key] for key in ("won", "pass_at"))
    lost = {key: -solved["64"][key] for key in ("value", "low", "high")}
    assert ours["difference"]["low"] < 0 and lost["value"] > 0.02
    return [
        final_line(ours),
        f"{NUMBERS[won]} seeds end above it and\n{NUMBERS[4 - won]} below",
        f"Its pass@64 is {100 * lost['value']:.1f} points below SAPO's {points(solved['64'])[5:]}",
        f"it is level ({points(slow['difference']['pass_at']['64'])})",
    ]


@claim("docs/results.md", f"{GSM8K}/summary.json")
def real_model_matched(r):
    rows = {row["name"]: row for row in r["tasks"]["four"]["matched"]}
    acpo, sapo = rows["acpo"], rows["sapo"]
    assert acpo["collapsed"] == acpo["difference"]["seeds"] == 4 and sapo["collapsed"] == 0
    assert max(acpo["values"].values()) < 0.0015
    curve = [entry["value"] for entry in acpo["curves"]["accuracy"]]
    assert max(curve[40:]) < 0.05 < min(curve[:30])
    seeds = ", ".join(f"{100 * value:.1f}" for value in acpo["values"].values())
    return [
        f"| `acpo` | {seeds} | {interval(acpo['accuracy'])} | "
        f"{interval(acpo['difference'], '+')} | {interval(acpo['area'])} |",
        f"to {100 * max(curve):.1f}% of a rollout in the mean of the seeds",
        f"keeps its {100 * sapo['accuracy']['value']:.1f}%",
    ]


SLOW = "results/compare/qwen2.5-0.5b-gsm8k-slow/summary.json"
SLOW_RUNS = "results/compare/qwen2.5-0.5b-gsm8k-slow/runs.jsonl"


def at_both_rates(r, ratio):
    """SAPO at its sweep's rate, at ACPO's, and ACPO; and ACPO's differences to the former two."""
    tasks = r["tasks"][ratio], load(SLOW)["tasks"][ratio]
    (sapo, acpo), (slow, again) = [
        [row for name in ("sapo", "acpo") for row in task["rows"] if row["name"] == name]
        for task in tasks
    ]
    assert acpo["values"] == again["values"] and slow["learning_rate"] == acpo["learning_rate"]
    return sapo, slow, acpo, acpo["difference"], again["difference"]


@claim("docs/results.md", f"{GSM8K}/summary.json")
def equal_rates(r):
    rows = {row["name"]: row for row in load(SLOW)["tasks"]["four"]["rows"]}
    settled = {name: row["verdict"] for name, row in rows.items()}
    assert settled.pop("sapo") == "" and settled.pop("global_sg_x3").startswith("not settled")
    assert set(settled.values()) == {"not told apart"}
    assert min(rows[name]["gain"]["value"] for name in ("sapo", "grpo")) > 0.15
    four = sorted(rows, key=lambda name: -rows[name]["accuracy"]["value"])
    sapo, again, acpo, fast, slow = at_both_rates(r, "eight")
    grpo = next(row for row in load(SLOW)["tasks"]["eight"]["rows"] if row["name"] == "grpo")
    eight = zip((sapo, again, grpo, acpo), (fast, slow, differences(acpo, grpo), None), strict=True)
    return [
        "\n".join(final_line(rows[name]) for name in four),
        "\n".join(final_line({**row, "difference": ahead}) for row, ahead in eight),
    ]


@claim("docs/results.md", f"{GSM8K}/summary.json")
def equal_rates_in_words(r):
    (_, slow, _, fast_4, slow_4), (eight, _, at_8, fast_8, slow_8) = (
        at_both_rates(r, ratio) for ratio in ("four", "eight")
    )
    assert slow_4["won"] == 0 and slow_8["low"] < 0 < slow_8["high"]
    at_one = {row["name"]: row for row in load(SLOW)["tasks"]["four"]["rows"]}
    sapo, ours, grpo = (
        lost_by_a_short_sweep(r, "four", name) for name in ("sapo", SCORE_ROWS[0], "grpo")
    )
    to_grpo = differences(at_one["grpo"], at_one["acpo"])
    solved = [slow_4["pass_at"][str(2**power)] for power in range(1, 6)]
    assert all(one["high"] < 0 for one in solved)
    behind = sorted(-100 * one["value"] for one in solved)
    assert slow_4["pass_at"]["64"]["high"] > 0 and at_8["gain"]["value"] < 0.15
    half = [-100 * at_one[name]["difference"]["low"] for name in ("acpo", "grpo")]
    ahead = 100 * at_one["grpo"]["difference"]["high"]
    broken = (r["tasks"]["four"], load(f"{SUMS}/summary.json")["tasks"]["sums"])
    for task in broken:
        sweeps = {row["name"]: row["sweep"] for row in task["rows"]}
        assert sweeps["acpo"]["3e-06"] < 0.03 < 0.3 < sweeps["grpo"]["3e-06"]
    lead = {key: -100 * slow_4["area"][key] for key in ("value", "low", "high")}
    apart = {
        name: interval(row["difference"], "+") for name, row in at_one.items() if name != "sapo"
    }
    control = at_one["global_sg_x3"]
    to_control = interval(differences(at_one["acpo"], control), "+")
    below_fixed = differences(at_one["fixed"], at_one["acpo"])
    to_fixed = [100 * below_fixed[key] for key in ("value", "low", "high")]
    by_accuracy = sorted(at_one, key=lambda name: at_one[name]["accuracy"]["value"])
    assert set(by_accuracy[:2]) == {"acpo", "global_sg_x3"} and control["difference"]["won"] == 0
    grpo_8 = next(row for row in load(SLOW)["tasks"]["eight"]["rows"] if row["name"] == "grpo")
    assert grpo_8["gain"]["value"] < 0.15
    ends = [
        at_one[name]["ends"][of]["value"]
        for of in ("entropy", "length", "truncated")
        for name in ("acpo", "global_sg_x3", "sapo")
    ]
    return [
        f"{above({'difference': fast_4}).replace(' [', ' points [')} with 4 updates per rollout "
        f"and {above({'difference': fast_8})[3:]} with 8",
        f"SAPO ends at {100 * slow['accuracy']['value']:.1f}% [",
        f"DAPO {apart['dapo']} from it, `score_normalised` {apart['score_normalised']}, "
        f"GRPO {apart['grpo']}, the controls `fixed` {apart['fixed']} and `global_sg_x3` "
        f"{apart['global_sg_x3']} (not settled allowing for the rows),\n"
        f"ACPO {points(slow_4)} from SAPO and {to_control} from `global_sg_x3`; with 8 updates "
        f"per rollout, where both SAPO and GRPO gain too little for a verdict, ACPO "
        f"is at {points(slow_8)} and GRPO at {interval(grpo_8['difference'], '+')};",
        f"with 8, and GRPO by {above(finals(r)[0])[3:]};",
        f"ACPO could be {half[0]:.0f} points below SAPO, and GRPO {half[1]:.0f} below or "
        f"{ahead:.0f} above",
        f"(read alone p {slow_4['p_value']:.3f} and {control['difference']['p_value']:.3f}; "
        f"Holm's, over six rows, {at_one['acpo']['p_holm']:.3f} and {control['p_holm']:.3f})",
        f"ACPO is at {to_control} from it.",
        "ACPO is {:.1f} points below it [{:.1f}, {:.1f}].".format(*to_fixed),
        f"both gain {100 * grpo_8['gain']['value']:.1f} points",
        f"in area by {lead['value']:.1f} points [{lead['high']:.1f}, {lead['low']:.1f}], below "
        f"GRPO at the end\nby {percent(to_grpo)}, and below SAPO in pass@2 to pass@32 by "
        f"{behind[0]:.1f} to {behind[-1]:.1f} points. All walk",
        "({:.3f} against {:.3f}; SAPO is at {:.3f})".format(*ends[:3]),
        "({:.0f} and {:.0f} tokens against {:.0f})".format(*ends[3:6]),
        "({:.1%} and {:.1%} against {:.1%})".format(*ends[6:]),
        "which costs SAPO\n{} points after 200 [{}, {}]".format(*sapo),
        "`score_normalised` ends {} lower there [{}, {}], not told apart".format(*ours),
        f"GRPO level ({grpo[0]} [{grpo[1]}, +{grpo[2]}])",
        f"from {interval(r['tasks']['eight']['start'])}",
        f"ends {100 * eight['gain']['value']:.1f} points above the start, so ACPO is ahead by "
        f"{100 * fast_8['value']:.1f} points (Holm's p {at_8['p_holm']:.3f}",
    ]


@claim("docs/results.md", SLOW_RUNS)
def still_learning(runs):
    """By how much each row's rollouts of the last quarter are above those of the third."""
    rises = {}
    for run in runs:
        if run["run"].startswith("four/study/"):
            curve = [entry["accuracy"] for entry in run["curve"]]
            last, third = curve[-(len(curve) // 4) :], curve[-2 * (len(curve) // 4) :]
            rise = statistics.fmean(last) - statistics.fmean(third[: len(last)])
            rises.setdefault(run["spec"]["row"], []).append(100 * rise)
    means = [statistics.fmean(own) for own in rises.values()]
    assert [len(own) for own in rises.values()] == [4] * 7
    return [f"last quarter are {min(means):.1f} to {max(means):.1f} points above those"]


@claim("docs/results.md", SLOW_RUNS)
def surer_than_the_control(runs):
    ends = {}
    for run in runs:
        if run["run"].startswith("four/study/"):
            last = run["curve"][-(len(run["curve"]) // 4) :]
            own = statistics.fmean(entry["entropy"] for entry in last)
            ends.setdefault(run["spec"]["row"], {})[run["spec"]["seed"]] = own
    apart = [value - ends["acpo"][seed] for seed, value in ends["global_sg_x3"].items()]
    assert len(apart) == 4 and min(apart) > 0
    by = percent(mean_over_seeds(apart)._asdict(), "{:.3f}", scale=1).replace(" ", " nats ", 1)
    return [f"by {by}"]


@claim("docs/results.md", SLOW_RUNS)
def equal_rates_runs(runs):
    known = {run["run"]: run for run in (*runs, *load(f"{GSM8K}/runs.jsonl"))}
    asked = (
        "eight/study/",
        *(f"four/study/{row}-lr1e-06" for row in METHODS if row != "acpo"),
    )
    texts = [[text["ends"] for text in run["examples"]]
             for name, run in known.items() if name.startswith(asked)]  # fmt: skip
    cut = sum(extract_answer(text) is None for run in texts for text in run)
    lengths = [sum(run["step_lengths"]) for run in runs if run["run"].startswith("four/study/")]
    done, whole = runs_of("qwen2.5-0.5b-gsm8k-slow", runs)
    assert whole == f"{done} runs"
    return [
        f"all of the study's {whole}, 16 of them the study's above",
        f"The {sum(map(len, texts))} answers that the {len(texts)} runs",
        f"{cut} of them until they are cut off before they come to an answer",
        f"({min(lengths):.2f} to {max(lengths):.2f})",
    ]


@claim("README.md", SLOW)
def larger_model_in_short(r):
    task = r["tasks"]["large"]
    rows = {row["name"]: row for row in task["rows"]}
    apart = {name: interval(rows[name]["difference"], "+") for name in ("acpo", SCORE_ROWS[0])}
    return [
        f"from {100 * task['start']['value']:.1f}%: SAPO ends at "
        f"{100 * rows['sapo']['accuracy']['value']:.1f}%, ACPO {apart['acpo']} and "
        f"`score_normalised` {apart[SCORE_ROWS[0]]} from it, not told apart",
    ]


@claim("docs/results.md", SLOW)
def larger_model(r):
    task = r["tasks"]["large"]
    rows = {row["name"]: row for row in task["rows"]}
    acpo, ours, sapo = (rows[name] for name in ("acpo", SCORE_ROWS[0], "sapo"))
    assert all(len(row["values"]) == 2 and not row["collapsed"] for row in rows.values())
    assert acpo["verdict"] == ours["verdict"] == "not told apart"
    ahead = [
        [100 * (row["values"][seed] - sapo["values"][seed]) for seed in ("0", "1")]
        for row in (acpo, ours)
    ]
    gains = [100 * row["gain"]["value"] for row in rows.values()]
    apart = -100 * acpo["difference"]["low"]
    return [
        f"from {100 * task['start']['value']:.1f}% and with two seeds: "
        f"SAPO ends at {interval(sapo['accuracy']).replace(' ', '% ', 1)}, "
        f"ACPO {interval(acpo['difference'], '+')} and "
        f"`score_normalised` {interval(ours['difference'], '+')} from it",
        f"It starts at {interval(task['start'])}:",
        "\n".join(map(final_line, (acpo, ours, sapo))),
        f"gain {min(gains):.0f} to {max(gains):.0f} points",
        f"ACPO is {-ahead[0][0]:.1f} points below SAPO with one and {ahead[0][1]:.1f} above with "
        f"the other, so it could be {apart:.0f} points apart either way",
        "above with both, by {:.1f} and {:.1f}.".format(*ahead[1]),
        f"(entropy {acpo['ends']['entropy']['value']:.3f} against "
        f"{sapo['ends']['entropy']['value']:.3f}). The 24 answers",
    ]


@claim("docs/results.md", f"{GSM8K}/runs.jsonl")
def left_undone(runs):
    known = {run["run"]: run for run in (*runs, *load(SLOW_RUNS))}
    logged = [[e["left_undone"] for e in run.get("curve") or () if "left_undone" in e]
              for run in known.values()]  # fmt: skip
    shares = [share for run in logged for share in run]
    lengths = {run["run"].split("-lr")[0]: sum(run["step_lengths"]) for run in runs
               if run["run"].endswith("seed0") and "/study/" in run["run"]}  # fmt: skip
    assert 0.3 < lengths["four/study/acpo"] / lengths["four/study/sapo"] < 0.36
    return [
        f"in none of {sum(map(bool, logged))} were more than {100 * max(shares):.1f}% of",
        f"a rollout's answers such, {100 * statistics.fmean(shares):.2f}% of all",
    ]


@claim("README.md", f"{GSM8K}/summary.json")
def real_model_in_short(r):
    rows = {row["name"]: row for row in load(SLOW)["tasks"]["four"]["rows"]}
    apart = {name: interval(row["difference"], "+") for name, row in rows.items() if name != "sapo"}
    fast = at_both_rates(r, "four")[3]
    return [
        f"4 seeds, from {100 * r['tasks']['four']['start']['value']:.1f}%",
        f"which ends at {100 * rows['sapo']['accuracy']['value']:.1f}%: DAPO {apart['dapo']}, "
        f"`score_normalised` {apart[SCORE_ROWS[0]]}, GRPO {apart['grpo']}, ACPO {apart['acpo']}, "
        f"and the paper's controls `fixed` {apart['fixed']} and `global_sg_x3` "
        f"{apart['global_sg_x3']} (not settled,",
        f"above SAPO ({points(fast).replace(' ', ' points ', 1)}, no verdict, since SAPO gained "
        f"too little; GRPO {points(finals(r)[0]['difference']).split()[0]})",
    ]


def differences(ours, theirs):
    """Two rows of one study, seed by seed."""
    apart = [value - theirs["values"][seed] for seed, value in ours["values"].items()]
    return mean_over_seeds(apart)._asdict()


def lost_by_a_short_sweep(r, ratio, name="sapo"):
    """How far a row at the rate of its sweep ends below the row at 1e-6, in points."""
    fast, slow = (
        next(row for row in study["tasks"][ratio]["rows"] if row["name"] == name)
        for study in (r, load(SLOW))
    )
    assert (fast["learning_rate"], slow["learning_rate"]) == (3e-6, 1e-6)
    lost = differences(slow, fast)
    return [f"{100 * lost[key]:.1f}" for key in ("value", "low", "high")]


@claim("docs/compare.md", f"{GSM8K}/summary.json")
def too_short_a_sweep(r):
    return [f"[{lost_by_a_short_sweep(r, 'four')[0]} points below](results.md#gsm8k) SAPO at 1e-6"]


@claim("docs/faq.md", f"{GSM8K}/summary.json")
def best_rates(r):
    rows = {row["name"]: row["sweep"] for row in r["tasks"]["four"]["rows"]}
    return [
        f"{100 * rows['sapo']['3e-07']:.1f}% right answers at 3e-7 and "
        f"{100 * rows['sapo']['1e-06']:.1f}% at 1e-6",
    ]


def ends_of_sums(r):
    rows = {row["name"]: row["accuracy"]["value"] for row in r["tasks"]["sums"]["rows"]}
    return (f"{100 * rows[name]:.1f}%" for name in ("acpo", "sapo", "grpo"))


@claim("README.md", f"{SUMS}/summary.json")
def sums_in_short(r):
    rows = {row["name"]: row for row in r["tasks"]["sums"]["rows"]}
    start = 100 * r["tasks"]["sums"]["start"]["value"]
    _, sapo, _ = ends_of_sums(r)
    grpo, acpo = (interval(rows[name]["difference"], "+") for name in ("grpo", "acpo"))
    return [
        f"SAPO ends at {sapo}, from {start:.1f}%, and no row is told apart from it: GRPO {grpo}, "
        f"ACPO {acpo}."
    ]


def four_at_a_time(runs):
    """With 4 updates per rollout, without those beside which not just three others ran."""
    apart = ("score_normalised", "study fixed", "study global_sg_x3", "study dapo")
    return [run for run in runs if run["spec"]["task"] == "four"
            and run["spec"]["row"] not in apart
            and f"{run['spec']['phase']} {run['spec']['row']}" not in apart]  # fmt: skip


@claim("docs/settings.md", f"{GSM8K}/runs.jsonl")
def run_times(runs):
    sweeps = [run for run in four_at_a_time(runs) if run["spec"]["phase"] == "sweep"]
    swept = [run for run in runs if run["run"].startswith("four/sweep/")]
    seconds = [run["train_seconds"] for run in sweeps]
    return [f"120 updates and {len(sweeps[0]['curve'])} rollouts, four runs sharing the "
            f"GPU with nothing else ({len(sweeps)} of {len(swept)}) | "
            f"{min(seconds):.0f} to {max(seconds):.0f} s |"]  # fmt: skip


@claim("docs/settings.md", SLOW_RUNS)
def larger_run_times(runs):
    known = [run for run in runs if run["run"].startswith("large/study/")]
    seconds = [run["train_seconds"] for run in known]
    rollouts = {len(run["curve"]) for run in known}
    return [
        f"200 updates and {rollouts.pop()} rollouts, two runs sharing the GPU | "
        f"{min(seconds):.0f} to {max(seconds):.0f} s |"
    ]


@claim("docs/recipes.md", f"{GSM8K}/runs.jsonl")
def recipe_curve(runs):
    known = {run["run"]: run for run in (*runs, *load(SLOW_RUNS))}

    def span(phase):
        seconds = [
            run["train_seconds"]
            for run in four_at_a_time(known.values())
            if run["spec"]["phase"] == phase
        ]
        return f"{min(seconds):.0f} to {max(seconds):.0f} s"

    return [
        f"the former train for {span('study')} each, the latter for {span('sweep')}.",
        "one seed, 120 updates",
    ]


SHARE = r"([\d.]+)% of ([\d,]+)"
SIGNS = ("ē", r"2 \+ ē", r"2 \+ δ")
TASKS = {"gsm8k": "GSM8K", "math500": "MATH-500"}


def once_rounded(share, count):
    """A page's share of a count with one digit, from the number it stands for."""
    count = int(count.replace(",", ""))
    return f"{100 * round(float(share) / 100 * count) / count:.1f}%"


@claim("docs/diagnose.md", "results/diagnose/quickstart.json")
def before_and_after(_):
    rows = zip(measures("quickstart-before"), measures("quickstart-after"), strict=True)
    return [f"| {before} | {after} |" for before, after in rows]


@claim("docs/diagnose.md", "results/diagnose/qwen2.5-0.5b.json")
@claim("docs/diagnose.md", "results/diagnose/qwen2.5-1.5b.json")
def real_geometry(r):
    size = r["note"].split("-")[2]
    folders = [f"qwen2.5-{size.lower()}-{task}-{w}" for task in TASKS for w in ("before", "after")]
    sources = [load(f"results/diagnose/{name}/alignment.md") for name in folders]
    tokens = [re.search(r"completions, ([\d,]+) tokens", text)[1] for text in sources]
    first, last = (100 * r["held_out"][when]["value"] for when in ("before", "after"))
    assert r["held_out"]["problems"] == 256
    return [
        f"{first:.1f}% to {last:.1f}% at {size}",
        f"| {size} | GSM8K, before | after | MATH-500, before | after |",
        f"| tokens | {' | '.join(tokens)} |",
        *(f"| {' | '.join(cells)} |" for cells in zip(*map(measures, folders), strict=True)),
        "{:.1f} and {:.1f} instead of {} and {} at {}".format(*rescaled(size), size),
    ]


def rescaled(size):
    """The longest entropy gradients after training, by the largest entropy before, then after."""
    pairs = [[f"qwen2.5-{size.lower()}-{task}-{w}" for w in ("before", "after")] for task in TASKS]
    scales = [largest_entropy(after) / largest_entropy(before) for before, after in pairs]
    assert max(scales) < 0.68
    pages = [load(f"results/diagnose/{after}/gradients.md") for _, after in pairs]
    longest = [float(re.search(r"up to (\S+) times", page)[1]) for page in pages]
    scaled = [scale * length for scale, length in zip(scales, longest, strict=True)]
    return *scaled, *(f"{length:.1f}" for length in longest)


@claim("docs/diagnose.md", "results/diagnose/qwen2.5-0.5b.json")
@claim("docs/diagnose.md", "results/diagnose/qwen2.5-1.5b.json")
def along_training(r):
    size = r["note"].split("-")[2]
    measured = {
        "aligned": ("sampled token is the mode", "{:.1%}"),
        "delta": ("mean δ", "{:.3f}"),
        "entropy": ("entropy, nats", "{:.3f}"),
    }
    steps = ("0", "50", "100", "150", "200")
    lines = []
    for task, title in TASKS.items():
        rows = load(f"results/diagnose/qwen2.5-{size.lower()}-{task}-training/trends.csv")
        known = {row["step"]: row for row in rows if row["branch"] == "all"}
        right = r["right_of_512"][task]
        assert [*known] == [*right]

        def line(label, cells, title=title):
            cells = " | ".join(cells.get(step, "") for step in steps).replace("|  |", "| |")
            lines.append(f"| {size}, {title}: {label} | {cells} |")

        line("right of 512", {step: str(count) for step, count in right.items()})
        for column, (label, form) in measured.items():
            cells = {step: form.format(float(row[column])) for step, row in known.items()}
            line(label, cells)
    good = [
        row
        for row in load(f"results/diagnose/qwen2.5-{size.lower()}-gsm8k-training/trends.csv")
        if row["branch"] == "Â > 0"
    ]
    return [*lines, f"from {float(good[0]['delta']):.3f} to {float(good[-1]['delta']):.3f}"]


@claim("docs/diagnose.md", "results/diagnose/blame-qwen2.5-0.5b-after/blame.csv")
def blame_after_training(rows):
    (acpo,) = [
        row
        for row in rows
        if (row["method"], row["quantity"], row["region"]) == ("acpo", "update", "at")
    ]
    page = load("results/diagnose/blame-qwen2.5-0.5b-after/blame.md")
    nothing = int(re.search(r"\((\d+) nothing, ", page)[1])
    found = int(acpo["completions"])
    assert found == len(load("results/diagnose/qwen2.5-0.5b.json")["first_errors_after"])
    return [
        f"of {found} of {found + nothing} wrong completions, of {acpo['prompts']} prompts",
        f"is {float(acpo['share']) / float(acpo['chance']):.2f} of chance "
        f"(p = {float(acpo['p_value']):.3f}, again one of {len({row['method'] for row in rows})} "
        "rows tested",
    ]


def measures(name):
    """What is measured of a folder of analyses, row by row."""

    def find(page, *patterns):
        text = load(f"results/diagnose/{name}/{page}.md").replace("\\", "")
        return [value for pattern in patterns for value in re.search(pattern, text).groups()]

    mode, low, high = find("alignment", r"\| ≤ 1e-6 \| (\S+%) \[(\S+%), (\S+%)\] \|")
    delta, entropy, longer = find(
        "gradients", r"at most (\S+) times as", r"up to (\S+) times.*at (\S+)% of the tokens"
    )
    of = {
        c: find("gradients", rf"c⁺ = {c} reverses {SHARE} aligned and {SHARE} mis") for c in SIGNS
    }
    assert of["2 \\+ δ"][0] == "0.00" and all(float(v[2]) == 0 for v in of.values())
    unrouted, routed = (
        find("mismatch", rf"{way}, non-positive branch: {SHARE}") for way in ("Unrouted", "Routed")
    )
    assert routed[0] == "0.00"
    outside, tokens, correlation = find(
        "envelope", r"- (\d+) of ([\d,]+) tokens lie outside", r"correlation of δ and H: (\d\.\d+)"
    )
    shares = [once_rounded(*of[c][:2]) for c in SIGNS[:2]]
    return [
        f"{mode} [{low}, {high}]",
        f"{float(delta):.2f} / {float(entropy):.1f}",
        f"{float(longer):.1f}%",
        f"{' / '.join(shares)} / 0 of {of['ē'][1]}",
        f"0 of {of['ē'][3]}",
        f"{once_rounded(*unrouted)} / 0 of {unrouted[1]}",
        f"{outside} of {tokens}",
        f"{float(correlation):.3f}",
        f"{largest_entropy(name):.2f}",
    ]


def largest_entropy(name):
    """What a trace's entropies are divided by."""
    text = load(f"results/diagnose/{name}/gradients.md")
    return float(re.search(r"H_max = ([\d.]+) nats", text)[1])


@claim("docs/diagnose.md", "results/diagnose/blame-quickstart/blame.csv")
@claim("docs/diagnose.md", "results/diagnose/blame-qwen2.5-0.5b/blame.csv")
def blame(rows):
    titles = {"sapo": "SAPO (and GRPO, DAPO, GSPO, CISPO, GMPO)", "acpo": "ACPO"}
    titles |= {"acpo_no_routing": "ACPO w/o routing", "shannon": "Shannon"}
    titles |= {"8020": METHODS["8020"].title, "gtpo": "GTPO"}
    lines = []
    for name, title in titles.items():
        cells = []
        for quantity in ("update", "gradient", "credit"):
            (row,) = [
                row
                for row in rows
                if (row["method"], row["quantity"], row["region"]) == (name, quantity, "at")
            ]
            cells.append(percent(row, PERCENT, ("share", "low", "high")))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


@claim("docs/diagnose.md", "results/diagnose/blame-qwen2.5-0.5b/blame.csv")
def blame_of_a_real_model(rows):
    at = {(row["method"], row["quantity"]): row for row in rows if row["region"] == "at"}
    acpo = at["acpo", "update"]
    chance, methods = float(acpo["chance"]), {name for name, _ in at}
    times = [float(at[name, "gradient"]["share"]) / chance for name in ("sapo", "acpo")]
    assert min(times) > 2.5 and max(times) < 3
    return [
        f"{acpo['completions']} of {acpo['prompts']} prompts",
        f"One token in {1 / chance:.0f} is the error: chance is {100 * chance:.1f}%",
        f"is {float(acpo['share']) / chance:.2f} of chance (p = {float(acpo['p_value']):.3f}, one "
        f"of {len(methods)} rows tested)",
    ]


@claim("docs/diagnose.md", "results/diagnose/blame-qwen2.5-0.5b.json")
def equations(r):
    return [f"the {len(r['first_errors'])} equations"]


@claim("docs/annotate.md", "results/first-error/summary.json")
def first_errors(r):
    lines = []
    for run in r["runs"]:
        (row,) = [
            row
            for row in run["aligned"]
            if (row["quantity"], row["effect"])
            == ("entropy", "after minus before, wrong minus right")
        ]
        change = percent(row, "{:+.4f}", ("mean", "low", "high"), scale=1).replace("-", "−")
        count = f"{row['pairs']:.0f}, {row['prompts']:.0f}"
        p = row["p_value"]
        shown = f"{p:.2f}" if p > 0.1 else f"{p:.2g}"
        lines.append(f"| {count} | {change} | {shown} |")
    return lines
