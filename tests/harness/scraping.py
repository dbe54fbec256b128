"""A scrape as Prometheus reads it, of a running service or of an engine alone."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.budget import Budgets
from timerwheel.api.http.traffic import Traffic
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.metrics import ServiceCollector, registry_of
from timerwheel.engine import Engine
from timerwheel.push.push import Push

PARTS_OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


class Scrape:
    """The metrics of one answer."""

    def __init__(self, text: str) -> None:
        found = list(text_string_to_metric_families(text))
        self.families = {
            family.name + "_total" * (family.type == "counter"): family
            for family in found
            if not family.name.startswith(("process_", "python_"))
        }
        assert len({family.name for family in found}) == len(found), "a metric is there twice"
        self.samples = [sample for family in found for sample in family.samples]

    def values(self, name: str, label: str) -> dict[str, float]:
        """The samples of a name by one of their labels."""
        return {s.labels.get(label, ""): s.value for s in self.samples if s.name == name}

    def value(self, name: str, **labels: str) -> float:
        """The one sample with this name and these labels."""
        (found,) = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        return found

    def total(self, name: str) -> float:
        """All samples of a name together."""
        return sum(sample.value for sample in self.samples if sample.name == name)

    def series(self) -> dict[str, set[str]]:
        """Every name that can be asked for, with its labels."""
        found: dict[str, set[str]] = {}
        for name, family in self.families.items():
            parts = PARTS_OF_HISTOGRAMS if family.type == "histogram" else ("",)
            found.update({name + part: set() for part in parts})
        for sample in self.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        return found


async def scrape_engine(
    engine: Engine, *, rocketmq: bool = False, traffic: Traffic | None = None, push: Push | None = None
) -> Scrape:
    """Scrape an engine that no server stands before; `traffic` says what one would have answered."""
    handle = EngineHandle(engine.settings)
    handle.open(engine, push or Push(engine))
    held = Budgets.of(engine.settings), LoopPauses()
    collector = ServiceCollector(handle, traffic or Traffic(), *held, rocketmq=rocketmq)
    collector.seen = engine, await engine.gauges.take()
    await collector.look_closer(lambda _topic: True)
    return Scrape(generate_latest(registry_of(collector)).decode())
