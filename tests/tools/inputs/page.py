"""page.py FILE SOURCE PLAN...: a page of --html loads nothing, has only its own elements, and the
text of the program as it is, whatever that is; the memory in use fits the arena."""
import html.parser
import json
import re
import sys

page = open(sys.argv[1], encoding="utf-8").read()
source, plans = sys.argv[2], sys.argv[3:]
tags, scripts, title, stack = [], [], "", []


class Reader(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        tags.append(tag)
        stack.append(tag)
        if tag == "script":
            scripts.append("")
        for name, value in attributes:
            assert name not in ("src", "href", "style") and not name.startswith("on"), (tag, name)

    def handle_endtag(self, tag):
        if tag in stack:
            while stack.pop() != tag:
                pass

    def handle_data(self, text):
        global title
        if stack and stack[-1] == "script":
            scripts[-1] += text
        if stack and stack[-1] == "title":
            title += text


reader = Reader()
reader.feed(page)
reader.close()
assert tags.count("script") == 2 and tags.count("style") == 1, tags
assert set(tags) <= {"html", "head", "meta", "title", "style", "body", "header", "main", "section",
                     "h1", "h2", "p", "span", "div", "table", "script"}, set(tags)
assert not re.search(r"https?://|url\(|@import|\bimport\b|fetch\(|innerHTML|outerHTML", page)
data = json.loads(scripts[0])
assert data["title"] == title
assert [plan["name"] for plan in data["plans"]] == plans
files = {f["file"]: f["lines"] for f in data["sources"]}
assert files[source] == open(source, encoding="utf-8").read().split("\n")[:-1]
for plan in data["plans"]:
    timeline, memory = plan["timeline"], plan["memory"]
    use = [b for _, b in memory["points"]]
    assert 0.5 * memory["arena"] < max(use) <= memory["arena"], (max(use), memory["arena"])
    assert [us for us, _ in memory["points"]] == sorted(us for us, _ in memory["points"])
    assert memory["persistent"] > 0
    for rank in timeline["ranks"]:
        assert {e[0] for e in rank if not e[4]} == set(range(len(timeline["steps"])))
        assert max(e[1] + e[2] for e in rank) <= timeline["us"] + 0.1
    for line in plan["shardings"]:
        assert line["file"] in files and line["values"]
        for value in line["values"]:
            assert value["layout"].startswith("[") and value["times"] >= 1
            # A param's line says its name, or that of the part it belongs to.
            text = files[line["file"]][line["line"] - 1]
            assert not value["name"] or any(
                part in text for part in value["name"].split(".")), (value, text)
    for line in plan["lines"]:
        if line["line"]:
            assert line["text"] in files[line["file"]][line["line"] - 1]
