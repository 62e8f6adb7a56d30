"""The file of annotations: whole after any end, and nobody else's."""

import json
import threading

import pytest

from acpo.annotate.annotations import (
    MAX_TEXT,
    Annotations,
    AnnotationWriter,
    Decision,
    Item,
    Proposal,
    Record,
    Review,
)
from acpo.annotate.annotators import ExactAnnotator, Status
from acpo.annotate.evidence import Accept, agreements, aligned_pairs
from acpo.annotate.pairs import Span, select
from acpo.annotate.propose import propose
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.tasks.chain import chain_problems
from annotate.traces import annotated, chain_rows, text_rows, write_texts


@pytest.fixture
def selection(tmp_path):
    return select(Trace.open(write_texts(tmp_path / "trace", chain_rows(chain_problems(2)))))


@pytest.fixture
def path(selection, tmp_path):
    with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
        propose(selection, [ExactAnnotator()], writer)
        item = next(iter(writer.annotations.items))
        span = writer.annotations.items[item].proposed["exact"]
        review = Review(Decision.ACCEPT, span, "exact", {"exact": span}, "Ada", "", "t", "t")
        writer.add_reviews([(item, review)])
    return tmp_path / "a.jsonl"


def test_what_was_written_is_read(path, selection):
    with AnnotationWriter(path, selection) as writer:
        written = writer.annotations
    read = Annotations.read(path)
    assert read == written
    assert len(read.items) == 4 + 8
    assert sum(record.review is not None for record in read.items.values()) == 1


def test_cut_anywhere_it_is_whole_up_to_there(path, selection):
    text = path.read_bytes()
    everything = text.count(b"\n") - 2  # without header and annotator
    for cut in range(0, len(text), 37):
        path.write_bytes(text[:cut])
        whole = text[:cut].count(b"\n")
        if whole:
            said = Annotations.read(path)
            found = sum(len(r.proposals) + len(r.reviews) for r in said.items.values())
            assert found == max(whole - 2, 0)
        found = annotated(path, selection, ExactAnnotator()).items.values()
        assert sum(len(record.proposals) for record in found) == everything - 1


def test_another_trace_another_writer_and_another_annotator_are_refused(path, selection, tmp_path):
    other = select(Trace.open(write_texts(tmp_path / "other", chain_rows(chain_problems(3)))))
    with pytest.raises(ACPOError, match="another trace"):
        AnnotationWriter(path, other)
    with AnnotationWriter(path, selection) as writer:
        with pytest.raises(ACPOError, match="another process"):
            AnnotationWriter(path, selection)
        with pytest.raises(ACPOError, match="another name"):
            writer.add_annotator("exact", {"kind": "model"})
    (tmp_path / "thesis.tex").write_text("\\documentclass{article}\n")
    for kept in (selection, None):
        with pytest.raises(ACPOError):
            AnnotationWriter(tmp_path / "thesis.tex", kept)
    assert (tmp_path / "thesis.tex").read_text() == "\\documentclass{article}\n"
    with pytest.raises(ACPOError, match="propose` makes one"):
        Annotations.read(tmp_path / "nothing")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, {"version": 2}, "newer"),
        (0, {"format": "other"}, ":1 is not a line"),
        (0, {"trace": 3}, ":1 is not a line"),
        (1, {"name": "e\x1b[2J"}, "name"),
        (2, {"span": [3, 99]}, "not within"),
        (2, {"span": [3, 3]}, "not within"),
        (2, {"span": [-1, 3]}, "whole number"),
        (2, {"span": [True, 3]}, "whole number"),
        (2, {"span": "ab"}, "list of two"),
        (2, {"status": "blessed"}, "blessed"),
        (2, {"annotator": "nobody"}, "annotator"),
        (2, {"rationale": "x" * 5000}, "longer than"),
        (2, {"rationale": "\ud800"}, "surrogates"),
        (2, {"kind": "wish"}, "wish"),
        (-1, {"decision": "reject"}, "span"),
        (-1, {"decision": "verified"}, "verified"),
        (-1, {"wrong": 77}, "77"),
    ],
)
def test_lines_that_are_not_ours_are_refused(path, number, change, message):
    rows = lines_of(path)
    rows[number] = {**rows[number], **change}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ACPOError, match=message):
        Annotations.read(path)


def test_a_file_of_another_kind_is_told_what_it_lacks(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "1+1?"}\n')
    with pytest.raises(ACPOError, match=r"rows.jsonl:1 .*\('format' is missing\): give a file"):
        Annotations.read(tmp_path / "rows.jsonl")


def test_places_outside_the_completions_are_refused(path, selection):
    """The file says how long a completion is, and may say anything."""
    text = path.read_text().replace('"length": ', '"length": 1000')
    path.write_text(text)
    assert Annotations.read(path).items
    with pytest.raises(ACPOError, match=r"tokens there and \d+ in the trace"):
        aligned_pairs(selection, Annotations.read(path), Accept.SOUND)
    with pytest.raises(ACPOError, match="propose anew"):
        AnnotationWriter(path, selection)


def test_writers_in_threads_do_not_mix_lines(path, selection):
    with AnnotationWriter(path, selection) as writer:
        writer.add_annotator("m", {"kind": "model"})
        items = list(writer.annotations.items)

        def write(item):
            for _ in range(20):
                proposal = Proposal("m", Status.REFUSED, None, "x" * 500, "", "now")
                writer.add_proposal(item, writer.annotations.items[item].length, proposal)

        threads = [threading.Thread(target=write, args=(item,)) for item in items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("m" in record.proposals for record in Annotations.read(path).items.values())


def test_agreement_by_hand(tmp_path):
    def record(a, b, length=100):
        spans = {"a": a, "b": b}
        return Record(
            length,
            {
                name: Proposal(name, Status.LOCATED if s else Status.NOTHING, s, "", "", "")
                for name, s in spans.items()
            },
        )

    annotations = Annotations(tmp_path, {}, {"a": {}, "b": {}})
    annotations.items = {
        Item("p", 0): record(Span(10, 12), Span(10, 30)),
        Item("p", 1): record(Span(10, 12), Span(13, 14)),
        Item("q", 0): record(Span(50, 51), Span(10, 11)),
        Item("q", 1): record(Span(50, 51), None),
        Item("q", 2): record(None, None),
        Item("q", 0, 5): record(Span(0, 1), Span(0, 1)),
    }
    errors, others = agreements(annotations, within=5)
    assert (errors.asked, errors.both, errors.neither, errors.prompts) == (5, 3, 1, 2)
    assert errors.exact == pytest.approx(1 / 3)
    assert errors.near == pytest.approx(2 / 3)
    assert errors.distance == pytest.approx((0 + 3 + 40) / 3)
    assert errors.by_chance == pytest.approx(11 / 100)
    assert (others.both, others.exact, others.by_chance) == (1, 1.0, 6 / 100)


def test_what_an_annotator_says_is_cut_to_what_can_be_read(tmp_path):
    rows = text_rows(("5", 1.0), ("6", 0.0), prompt="q" * 5000)
    selection = select(Trace.open(write_texts(tmp_path / "long", rows)))

    class Talker(ExactAnnotator):
        def first_error(self, wrong):
            return super().first_error(wrong)._replace(rationale="because " * 1000)

    found = annotated(tmp_path / "long.jsonl", selection, Talker())
    said = found.items[Item("q", 1)].proposals["exact"]
    assert said.status is Status.NOT_COMPUTABLE
    assert len(said.rationale) == MAX_TEXT and said.rationale.startswith("because because")


def test_the_first_line_names_the_trace_and_nothing_else(path, selection):
    header = {"format": "acpo-annotations", "version": 1, "trace": selection.fingerprint, "step": 0}
    assert lines_of(path)[0] == header
    older = {**header, "selection": selection.counts}
    path.write_text("\n".join([json.dumps(older), *path.read_text().splitlines()[1:], ""]))
    with AnnotationWriter(path, selection) as writer:
        assert len(writer.annotations.items) == 4 + 8
