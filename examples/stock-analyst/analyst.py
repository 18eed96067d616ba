#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which of these companies did best?

An agent's program, as any other: the task comes on standard input, the result goes to standard output, files
to keep into the directory AGENT_ARTIFACTS_DIR. Prices come from the service "market-data", which is reached through
the bridge at the URL in AGENT_SERVICE_MARKET_DATA_URL. The service wants an OAuth access token; this program has none,
knows none, and cannot get one: the bridge attaches it outside of the sandbox. All it shows is the run's own token.

Task:   {"question": "…", "companies": ["AAPL", …] (default: all), "hold": SECONDS (for the demo, see hold())}
Result: {"answer": "…", "best": "AAPL", "from": "…", "to": "…", "returns": [{"company", "first", "last", "total_return"}…]}
"""

import io
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request

TRIES = 8


def fetch(path):
    """GETs PATH of the service. The bridge may be restarted at any moment, so this tries again for a while."""
    url = os.environ["AGENT_SERVICE_MARKET_DATA_URL"] + path
    pause = 0.05
    for left in reversed(range(TRIES)):
        with open(os.environ["AGENT_TOKEN_FILE"], encoding="ascii") as f:
            token = f.read().strip()
        request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if left == 0 or error.code not in (429, 502, 503, 504):
                raise SystemExit(f"GET {path}: {error.code} {error.read(2000).decode(errors='replace')}") from None
        except OSError as error:
            if left == 0:
                raise SystemExit(f"GET {path}: {error}") from None
        time.sleep(pause)
        pause = min(pause * 2, 2)


def compare(histories):
    """Total return of each company over the time for which all of them have prices; best first."""
    start = max(prices[0]["date"] for prices in histories.values())
    end = min(prices[-1]["date"] for prices in histories.values())
    returns = []
    for company, prices in histories.items():
        span = [p["price"] for p in prices if start <= p["date"] <= end]
        returns.append({
            "company": company,
            "first": span[0],
            "last": span[-1],
            "total_return": round(span[-1] / span[0] - 1, 4),
        })
    returns.sort(key=lambda r: -r["total_return"])
    return start, end, returns


def draw(histories, start, end, returns, path):
    # Costs most of the program's time, so not before it is needed.
    import datetime

    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    colours = ["#0b6e4f", "#8a8f98", "#a9adb4", "#c0c3c8", "#d3d5d9"]
    labels = []
    for rank, entry in enumerate(returns):
        span = [p for p in histories[entry["company"]] if start <= p["date"] <= end]
        dates = [datetime.date.fromisoformat(p["date"]) for p in span]
        values = [100 * p["price"] / entry["first"] for p in span]
        colour = colours[min(rank, len(colours) - 1)]
        axes.plot(dates, values, color=colour, linewidth=2.6 if rank == 0 else 1.6, zorder=10 - rank)
        labels.append((values[-1], f"{entry['company']} {entry['total_return']:+.0%}", colour if rank == 0 else "#555a61"))

    axes.set_yscale("log")
    # On a scale of logarithms, labels that are less than 7 % of the axis apart would cover each other.
    low, high = axes.get_ylim()
    step, below = (high / low) ** 0.05, low
    for value, text, colour in sorted(labels):
        below = max(value, below * step)
        axes.annotate(text, (1.01, below), xycoords=("axes fraction", "data"), va="center", color=colour,
                      fontweight="bold" if text == labels[0][1] else "normal")

    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if str(value)[0] in "25" else "")
    axes.grid(axis="y", color="#e6e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"{returns[0]['company']} did best", loc="left", fontsize=15, fontweight="bold", pad=22)
    axes.text(0, 1.02, f"Price, {start[:7]} = 100 (logarithmic), to {end[:7]}", transform=axes.transAxes, color="#555a61")
    # No time of making in the file: the same task gives the same bytes.
    figure.savefig(path, format="png", metadata={"Software": None})


def hold(seconds):
    """Waits for SIGUSR1: so the demo can look at a run which has just used the service, and is still alive."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with open("/tmp/holding", "x", encoding="ascii"):
        pass
    signal.sigtimedwait({signal.SIGUSR1}, seconds)


def self_test():
    """Draws made-up prices: proves that the environment has what is needed, and fills matplotlib's font cache."""
    months = [f"2000-{month:02}-01" for month in range(1, 13)]
    histories = {name: [{"date": d, "price": 10 + i * factor} for i, d in enumerate(months)]
                 for name, factor in (("UP", 2), ("DOWN", -0.5))}
    start, end, returns = compare(histories)
    draw(histories, start, end, returns, io.BytesIO())
    assert [r["company"] for r in returns] == ["UP", "DOWN"]


def main():
    if sys.argv[1:2] == ["--self-test"]:
        return self_test()

    task = json.load(sys.stdin)
    companies = task.get("companies") or fetch("/prices")["symbols"]
    print(f"comparing {', '.join(companies)}", file=sys.stderr)
    histories = {company: fetch("/prices/" + company)["prices"] for company in companies}

    start, end, returns = compare(histories)
    draw(histories, start, end, returns, os.path.join(os.environ["AGENT_ARTIFACTS_DIR"], "chart.png"))
    if task.get("hold"):
        hold(task["hold"])

    best = returns[0]
    json.dump({
        "answer": f"{best['company']} did best: {best['total_return']:+.1%} from {start} to {end}.",
        "best": best["company"],
        "from": start,
        "to": end,
        "returns": returns,
    }, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
