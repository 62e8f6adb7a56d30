"""Merging exported decisions: all or none, and only what a person could have decided."""

import json

import pytest

import commandline
from acpo.annotate.annotations import Annotations, AnnotationWriter, Item, Proposal
from acpo.annotate.annotators import ExactAnnotator, Status
from acpo.annotate.apply import Merged, apply
from acpo.annotate.evidence import Accept, Evidence, aligned_pairs, error_places
from acpo.annotate.pairs import Span, select
from acpo.annotate.propose import propose
from acpo.errors import ACPOError
from acpo.linefile import LineFile
from acpo.records import Trace
from acpo.tasks.chain import chain_problems
from acpo.viewer.review import write_review_page
from annotate.traces import chain_rows, placed_by_models, write_texts


@pytest.fixture
def case(tmp_path):
    selection = select(Trace.open(write_texts(tmp_path / "trace", chain_rows(chain_problems(2)))))
    with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
        propose(selection, [ExactAnnotator()], writer, concurrency=1)  # in one order
        for name in ("m", "n"):
            writer.add_annotator(name, {"kind": "model", "model": name})
        for item, record in list(writer.annotations.items.items()):
            proposal = Proposal("m", Status.LOCATED, Span(1, 3), "hm", "", "now")
            writer.add_proposal(item, record.length, proposal)
    return selection, tmp_path / "a.jsonl"


def decision(annotations, item, kind="accept", **changes):
    proposed = {name: list(span) for name, span in annotations.items[item].proposed.items()}
    error = annotations.error_of(item)
    row = {
        **item._asdict(),
        "decision": kind,
        "span": proposed["exact"] if kind == "accept" else None,
        "annotator": "exact" if kind == "accept" else None,
        "error": list(error.proposed["exact"]) if error else None,
        "proposed": proposed,
        "note": "",
        "when": "2026-11-16T04:30:00.123Z",
    }
    return {**row, **changes}


def exported(annotations, *decisions, **changes):
    return {
        "format": "acpo-review",
        "version": 2,
        "trace": annotations.header["trace"],
        "step": 0,
        "reviewer": "Ada",
        "exported": "2026-11-16T04:31:00Z",
        "decisions": list(decisions),
        **changes,
    }


def merge(path, *decisions, **changes):
    """Apply decisions, exported to the file beside the annotations."""
    review = path.with_name("review.json")
    review.write_text(json.dumps(exported(Annotations.read(path), *decisions, **changes)))
    return apply(path, review)


def refused(path, message, *decisions, **changes):
    before = path.read_bytes()
    with pytest.raises(ACPOError, match=message):
        merge(path, *decisions, **changes)
    assert path.read_bytes() == before


def test_later_decisions_replace_earlier_ones_which_stay_on_record(case):
    _, path = case
    annotations = Annotations.read(path)
    first, second = list(annotations.items)[:2]
    rows = [decision(annotations, first), decision(annotations, second, "reject", note="no")]
    assert merge(path, *rows) == Merged(1, 0, 1, 0, 0, 10)
    assert merge(path, *rows) == Merged(0, 0, 0, 0, 2, 10), "the same again changes nothing"
    moved = decision(annotations, first, "move", span=[2, 4])
    merged = Merged(0, 1, 0, 1, 0, 11)  # what corresponded to the old place waits again
    assert merge(path, moved, reviewer="Bo") == merged
    record = Annotations.read(path).items[first]
    assert [(r.reviewer, r.decision) for r in record.reviews] == [("Ada", "accept"), ("Bo", "move")]
    assert record.review.span == Span(2, 4)
    assert record.review.proposed == record.proposed
    assert record.review.when == "2026-11-16T04:30:00+00:00"


def test_an_export_from_before_the_decision_that_counts_changes_nothing(case):
    _, path = case
    annotations = Annotations.read(path)
    error, place = list(annotations.items)[:2]
    old = [decision(annotations, error), decision(annotations, place)]
    later = decision(annotations, error, "reject", when="2026-11-17T00:00:00+02:00")
    other = decision(annotations, error, "move", span=[2, 4], when="2026-11-16T21:00:00Z")
    merge(path, *old)
    assert merge(path, later).replaced == 1
    before = path.read_bytes()
    assert merge(path, *old) == Merged(0, 0, 0, 0, 2, 9)
    assert merge(path, other, reviewer="Bo") == Merged(0, 0, 0, 0, 1, 9), "made before, seen after"
    assert path.read_bytes() == before
    refused(path, "was rejected", old[0], {**old[1], "when": "2026-11-18T00:00:00Z"})


BAD_FILES = {
    "format": ({"format": "other"}, "format 'other'"),
    "version": ({"version": 1}, "version 1"),
    "trace": ({"trace": "0" * 32}, "another trace"),
    "step": ({"step": 1}, "another trace"),
    "no name": ({"reviewer": "  "}, "say who decided"),
    "a name of lines": ({"reviewer": "Ada\nBo"}, "say who decided"),
    "a long name": ({"reviewer": "A" * 201}, "say who decided"),
    "a number for a name": ({"reviewer": 3}, "say who decided"),
    "decisions": ({"decisions": {}}, "not a list"),
    "more": ({"verified": True}, "'verified' is unknown"),
}
BAD_DECISIONS = {
    "prompt": ({"prompt_id": "x"}, "is not in"),
    "sample": ({"wrong": 99}, "is not in"),
    "true for a sample": ({"wrong": True}, "do not name completions"),
    "a list for a prompt": ({"prompt_id": []}, "do not name completions"),
    "kind": ({"decision": "verify"}, "'verify'"),
    "before all time": ({"when": "0001-01-01T00:00:00+23:00"}, "not a time"),
    "no span": ({"span": None}, "does not go with accept"),
    "another span": ({"span": [0, 1]}, "did not propose"),
    "outside": ({"decision": "move", "annotator": None, "span": [0, 999]}, "not within"),
    "backwards": ({"decision": "move", "annotator": None, "span": [3, 2]}, "not within"),
    "fractions": ({"decision": "move", "annotator": None, "span": [0.5, 2]}, "whole number"),
    "a moved proposal": ({"decision": "move"}, "does not go with move"),
    "a rejected span": ({"decision": "reject", "annotator": None}, "does not go with reject"),
    "whose": ({"annotator": "nobody"}, "did not propose"),
    "unseen": ({"proposed": {}}, "make the review page anew"),
    "seen otherwise": ({"proposed": {"exact": [0, 1], "m": [1, 3]}}, "anew"),
    "seen nonsense": ({"proposed": [1]}, "anew"),
    "note": ({"note": "x" * 4001}, "note="),
    "half a character": ({"note": "\ud800"}, "note="),
    "time": ({"when": "yesterday"}, "Invalid isoformat"),
    "no time": ({"when": 5}, "when=5"),
    "more": ({"verified": True}, "'verified' is unknown"),
    "beside no error": ({"error": None}, "decided beside the error at None"),
    "beside another error": ({"error": [1, 3]}, "decided beside the error at Span"),
    "beside nonsense": ({"error": [9, 2]}, "not within"),
    "what corresponds to another error": ({"annotator": "m", "span": [1, 3]}, "its own error"),
}


@pytest.mark.parametrize(("change", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_files_that_are_refused(case, change, message):
    _, path = case
    annotations = Annotations.read(path)
    row = decision(annotations, next(iter(annotations.items)))
    refused(path, message, row, **change)


@pytest.mark.parametrize(("change", "message"), BAD_DECISIONS.values(), ids=BAD_DECISIONS.keys())
def test_decisions_that_are_refused_with_all_the_others(case, change, message):
    _, path = case
    annotations = Annotations.read(path)
    first, second = list(annotations.items)[:2]
    rows = [decision(annotations, first), {**decision(annotations, second), **change}]
    refused(path, message, *rows)


def test_two_decisions_on_one_item_and_files_that_are_no_json(case):
    _, path = case
    annotations = Annotations.read(path)
    row = decision(annotations, next(iter(annotations.items)))
    refused(path, "second decision", row, row)
    review = path.with_name("other.json")
    for text in ("", "[" * 100_000, "NaN", '"x"', '{"format": "acpo-review"}'):
        review.write_text(text)
        with pytest.raises(ACPOError):
            apply(path, review)
    missing = commandline.refused("annotate", "apply", path, review.parent / "none")
    assert "No such file" in missing


def pairs_by_evidence(selection, path, accept):
    pairs, _ = aligned_pairs(selection, Annotations.read(path), accept)
    return [pair.evidence for pair in pairs]


def test_nothing_counts_as_verified_until_a_person_said_so(case):
    selection, path = case
    assert pairs_by_evidence(selection, path, Accept.SOUND) == [Evidence.COMPUTED] * 8
    with pytest.raises(ACPOError, match="no pair counts"):
        aligned_pairs(selection, Annotations.read(path), Accept.VERIFIED_ONLY)
    annotations = Annotations.read(path)
    error = Item(*next(key for key in annotations.items if key.right is None))
    pair = next(key for key in annotations.items if key.right is not None and key[:2] == error[:2])
    merge(path, decision(annotations, error))
    with pytest.raises(ACPOError, match="corresponding place: not verified"):
        aligned_pairs(selection, Annotations.read(path), Accept.VERIFIED_ONLY)
    merge(path, decision(annotations, pair))
    assert pairs_by_evidence(selection, path, Accept.VERIFIED_ONLY) == [Evidence.VERIFIED]
    merge(path, decision(annotations, error, "reject"))
    assert len(pairs_by_evidence(selection, path, Accept.ALL_PROPOSALS)) == 6


def test_what_corresponds_to_one_error_does_not_stand_for_another(case):
    selection, path = case
    annotations = Annotations.read(path)
    error = next(key for key in annotations.items if key.right is None)
    merge(path, decision(annotations, error, "move", span=[0, 1]))
    pairs, outcomes = aligned_pairs(selection, Annotations.read(path), Accept.SOUND)
    assert len(pairs) == 6
    assert outcomes["corresponding place: of a moved error, not verified"] == 2
    merge(path, decision(annotations, error, annotator="m", span=[1, 3]))
    pairs, _ = aligned_pairs(selection, Annotations.read(path), Accept.ALL_PROPOSALS)
    changed = [pair for pair in pairs if pair.wrong.sample == error.wrong][:2]
    assert {pair.corresponding.annotator for pair in changed} == {"m"}


def test_what_was_verified_beside_one_error_does_not_count_beside_the_next(case):
    selection, path = case
    annotations = Annotations.read(path)
    error = next(key for key in annotations.items if key.right is None)
    places = [key for key in annotations.items if key[:2] == error[:2] and key != error]
    rows = [decision(annotations, item) for item in (error, *places)]
    assert merge(path, *rows).undecided == 9
    assert len(pairs_by_evidence(selection, path, Accept.VERIFIED_ONLY)) == 2
    later = decision(annotations, error, annotator="m", span=[1, 3])
    assert merge(path, later).undecided == 11
    with pytest.raises(ACPOError, match="2 corresponding place: verified beside another error"):
        aligned_pairs(selection, Annotations.read(path), Accept.VERIFIED_ONLY)


def test_a_proposal_is_accepted_beside_its_own_error_alone(case):
    _, path = case
    annotations = Annotations.read(path)
    error, place = list(annotations.items)[:2]
    rows = [decision(annotations, error, annotator="m", span=[1, 3]), decision(annotations, place)]
    merge(path, rows[0])
    refused(path, "its own error", {**rows[1], "error": [1, 3]})


def test_nothing_waits_that_corresponds_to_a_rejected_error(case):
    _, path = case
    annotations = Annotations.read(path)
    error, place = list(annotations.items)[:2]
    rejected = decision(annotations, error, "reject")
    assert merge(path, rejected) == Merged(0, 0, 1, 0, 0, 9)
    beside = decision(annotations, place)
    refused(path, "was rejected", beside)
    refused(path, "decision 2: nothing corresponds", rejected, beside)


def test_models_are_not_believed_unless_asked_to(tmp_path):
    selection = select(Trace.open(write_texts(tmp_path / "trace", chain_rows(chain_problems(1)))))
    annotations = placed_by_models(tmp_path / "a.jsonl", selection, Span(4, 5), "m")
    with pytest.raises(ACPOError, match=r"4 error: not verified.*--all-proposals"):
        aligned_pairs(selection, annotations, Accept.SOUND)
    pairs, _ = aligned_pairs(selection, annotations, Accept.ALL_PROPOSALS)
    assert [pair.evidence for pair in pairs] == [Evidence.PROPOSED] * 4


def test_the_remedy_is_one_that_is_not_in_force(tmp_path):
    selection = select(Trace.open(write_texts(tmp_path / "trace", chain_rows(chain_problems(1)))))
    with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
        writer.add_annotator("m", {"kind": "model"})
        annotations = writer.annotations
    for find in (aligned_pairs, error_places):
        with pytest.raises(ACPOError, match=r"--all-proposals to `acpo diagnose blame` or `first-"):
            find(selection, annotations, Accept.SOUND)
        with pytest.raises(ACPOError, match="leave --verified-only out") as verified:
            find(selection, annotations, Accept.VERIFIED_ONLY)
        with pytest.raises(ACPOError, match="ask another annotator") as every:
            find(selection, annotations, Accept.ALL_PROPOSALS)
        assert "--all-proposals" not in f"{verified.value}{every.value}"


def test_a_full_disk_merges_none_and_spoils_nothing(case, monkeypatch):
    class Full:
        """A file that takes the first line and half of the second, then nothing."""

        def __init__(self, file):
            self.file, self.left = file, None

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            if self.left == 0:
                raise OSError(28, "No space left on device")
            self.left = 0
            return self.file.write(data[: data.index(b"\n") + 20])

    _, path = case
    annotations = Annotations.read(path)
    rows = [decision(annotations, item) for item in list(annotations.items)[:3]]
    before = path.read_bytes()
    resume = LineFile.resume

    def full(lines, *arguments):
        found = resume(lines, *arguments)
        lines._file = Full(lines._file)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "resume", full)
        with pytest.raises(ACPOError, match="No space"):
            merge(path, *rows)
    assert path.read_bytes() == before
    assert merge(path, *rows).accepted == 3


def test_a_page_that_cannot_be_written_is_told(case, tmp_path):
    _, path = case
    trace, annotations = Trace.open(tmp_path / "trace"), Annotations.read(path)
    with pytest.raises(ACPOError, match="cannot be written"):
        write_review_page(trace, annotations, tmp_path / "trace")
    assert write_review_page(trace, annotations, tmp_path / "new" / "page.html")
