"""Metrics of the jobs that no worker has begun."""

from __future__ import annotations

from codegen_svc.edge.job_metrics import JobMetrics

NAMES = ("kernelfarm_queued_jobs", "kernelfarm_queue_oldest_seconds")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def values(metrics: JobMetrics) -> dict[tuple[str, ...], float]:
    """The values that are not 0, by the metric's name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in metrics.collect()
        for sample in metric.samples
        if sample.value
    }


def test_a_job_is_queued_until_a_worker_begins_it() -> None:
    clock = Clock()
    metrics = JobMetrics(clock)
    queued, oldest = NAMES
    with metrics.queued("cuda", is_warm_up=False) as first:
        clock.now_s += 3
        with metrics.queued("cuda", is_warm_up=True) as second:
            clock.now_s += 2
            first.sent()
            assert values(metrics) == {
                (queued, "cuda", "interactive", "sent"): 1,
                (queued, "cuda", "warm_up", "waiting"): 1,
                (oldest, "cuda", "interactive"): 5,
                (oldest, "cuda", "warm_up"): 2,
            }
            metrics.begin(first)
            assert values(metrics) == {
                (queued, "cuda", "warm_up", "waiting"): 1,
                (oldest, "cuda", "warm_up"): 2,
            }
            metrics.begin(second)
    assert values(metrics) == {}


def test_a_job_that_is_given_up_is_not_queued_any_more() -> None:
    metrics = JobMetrics()
    try:
        with metrics.queued("rocm", is_warm_up=False):
            raise TimeoutError
    except TimeoutError:
        assert values(metrics) == {}


def test_every_vendor_has_values_before_its_first_job() -> None:
    vendors = {
        sample.labels["vendor"] for metric in JobMetrics().collect() for sample in metric.samples
    }
    assert {"ascend", "cpu", "cuda", "rocm"} <= vendors
