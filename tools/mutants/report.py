"""What a sample has shown: rates by file and by kind of mutation and of test, and the survivors."""

import collections
import json


def counts(verdicts):
    """{mutants, killed, killed_by_units, killed_by_simulation} of verdicts on mutants that are not equivalent."""
    return {
        "mutants": len(verdicts),
        "killed": sum(1 for v in verdicts if v["units"] or v["simulation"]),
        "killed_by_units": sum(1 for v in verdicts if v["units"]),
        "killed_by_simulation": sum(1 for v in verdicts if v["simulation"]),
    }


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "-"


def table(verdicts, field, title):
    """One line for each value of `field`, and one for all."""
    groups = collections.defaultdict(list)
    for verdict in verdicts:
        groups[verdict[field]].append(verdict)
    rows = [(title, "mutants", "killed", "by units", "by simulation")]
    for name, group in [*sorted(groups.items()), ("all", verdicts)]:
        of = counts(group)
        rates = [percent(of[key], of["mutants"]) for key in ("killed", "killed_by_units", "killed_by_simulation")]
        rows.append((name, str(of["mutants"]), *rates))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(row, widths))) for row in rows)


def survivors(verdicts, simulated=True):
    """Diffs: first of those that nothing noticed, then of those that one kind of test alone noticed."""
    parts = []
    for what, alive in (("SURVIVED everything", lambda v: not v["units"] and not v["simulation"]),
                        ("SURVIVED unit tests", lambda v: not v["units"] and v["simulation"]),
                        ("SURVIVED the simulation",
                         lambda v: simulated and v["units"] and not v["simulation"])):
        for verdict in filter(alive, verdicts):
            noticed = verdict["units"] or verdict["simulation"]
            parts.append(f"{what}: {verdict['kind']} in {verdict['function'] or 'a constant'}"
                         + (f" (noticed by {noticed})" if noticed else "") + f"\n{verdict['diff']}")
    return "\n".join(parts)


def text(verdicts, simulated):
    tables = [table(verdicts, "path", "file"), table(verdicts, "kind", "kind")]
    return "\n\n".join([survivors(verdicts, simulated), *tables])


def write_json(path, verdicts, more):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**counts(verdicts), **more, "verdicts": verdicts}, file, indent=1)
        file.write("\n")
