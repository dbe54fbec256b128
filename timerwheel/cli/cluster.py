"""`cluster status|move`: the nodes that share a journal."""

from timerwheel.cli.connection import ask
from timerwheel.cli.form import prints_ids
from timerwheel.cli.options import JsonFlag, UrlOption
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL


@prints_ids
def status(url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """List the nodes with the same journal: which one leads, and how far behind the others are."""
    found = ask(url, lambda client: client.cluster())
    output = Output(as_json=as_json)
    output.listing(
        found,
        ("node", "role", "#behind"),
        [(node.url, node.role, "-" if node.behind is None else f"{node.behind:,}") for node in found.nodes],
        ids=[node.url for node in found.nodes],
    )
    if found.role == "alone" and output.for_people:
        output.line("the service has no journal: it is the only node")


@prints_ids
def move(url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Let another node lead than the one at --url; returns once it does."""
    leader = ask(url, lambda client: client.move_leader())
    output = Output(as_json=as_json)
    output.result({"leader": leader}, f"{leader} leads now", ids=[leader])
