"""What the commands and snippets of the documents find in the folder they run in."""

import json
import re

from docs.pages import DOCUMENTS, ROOT, blocks

ROWS = [{"problem": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(40)]


def furnish(folder):
    """Recipes as `acpo init` leaves them, files of problems and of completions, and whatever a
    document shows under a file name."""
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "results").symlink_to(ROOT / "results")
    completions = [{**row, "completion": f"Answer: {row['answer']}"} for row in ROWS]
    for name, rows in (
        ("problems.jsonl", ROWS),
        ("product.jsonl", [{"a": 2, "b": i, "answer": str(2 * i)} for i in range(40)]),
        ("train.jsonl", [{"prompt": row["problem"], "answer": row["answer"]} for row in ROWS]),
        ("gsm8k_train.jsonl", ROWS),
        ("gsm8k_test.jsonl", ROWS[:8]),
        ("completions.jsonl", completions),
    ):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for document in DOCUMENTS:
        for block in blocks(document):
            named = re.match(r"# (\w+\.(?:py|ya?ml))\n", block.text)
            if named:
                (folder / named[1]).write_text(block.text)
