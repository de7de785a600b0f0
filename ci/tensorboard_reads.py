"""Reads what the example `events` of forebear-supervise has written, with the readers of TensorBoard, and checks each value."""

import logging
import pathlib
import shutil
import sys

from tensorboard.backend.event_processing import event_accumulator, event_file_loader

logging.getLogger("tensorboard").setLevel(logging.ERROR)

runs = pathlib.Path(sys.argv[1])
(path,) = (runs / "one").iterdir()

events = list(event_file_loader.LegacyEventFileLoader(str(path)).Load())
assert len(events) == 1 + 1 + 1000 + 1 + 1 + 1, len(events)
assert events[0].file_version == "brain.Event:2"
assert (events[1].session_log.status, events[1].step) == (events[1].session_log.START, 100)
assert events[-2].session_log.status == events[-2].session_log.CHECKPOINT
assert events[-2].session_log.checkpoint_path == "checkpoint-000000001099"
assert events[-1].session_log.status == events[-1].session_log.STOP
assert all(before.wall_time <= after.wall_time for before, after in zip(events, events[1:]))

read = event_accumulator.EventAccumulator(str(runs / "one"), size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0})
read.Reload()
tags = read.Tags()
assert set(tags["scalars"]) == {"loss", "global_step/sec"}, tags
losses = read.Scalars("loss")
assert [scalar.step for scalar in losses] == list(range(100, 1100))
assert all(abs(scalar.value - 1 / (scalar.step - 99)) < 1e-6 for scalar in losses)
assert [scalar.value for scalar in read.Scalars("global_step/sec")] == [7.5] * 1000
assert len(read.Histograms("weights")) == 10
first = read.Histograms("weights")[0].histogram_value
assert (first.num, first.min, first.max, sum(first.bucket)) == (1000, 0.0, 999.0, 1000)
assert len(read.Images("pixel")) == 10
assert (read.Images("pixel")[0].width, read.Images("pixel")[0].height) == (1, 1)
(text,) = read.Tensors("note")
assert text.tensor_proto.string_val[0] == b"**the end**"

# A torn tail costs that tail and nothing else.
torn = runs / "torn"
torn.mkdir()
copy = torn / path.name
shutil.copy(path, copy)
with open(copy, "r+b") as file:
    file.truncate(copy.stat().st_size - 5)
assert len(list(event_file_loader.LegacyEventFileLoader(str(copy)).Load())) == len(events) - 1

print(f"TensorBoard has read {len(events)} events, and {len(events) - 1} of a torn file")
