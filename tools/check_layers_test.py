#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py: each rule is broken once in a small tree, and reported with file and line."""
import pathlib
import tempfile
import unittest

import check_layers


class CheckLayers(unittest.TestCase):
    def found(self, path, *includes):
        """The violations of a tree with one file that has these includes."""
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True)
            file.write_text("".join(f"#include {include}\n" for include in includes))
            return list(check_layers.violations(pathlib.Path(root)))

    def test_what_is_allowed_passes(self):
        for path, include in [
            ("src/engine/progress.cc", '"exchange/factory.hpp"'),
            ("src/base/log.cc", "<spdlog/spdlog.h>"),
            ("src/transport/tcp/socket.cc", "<sys/epoll.h>"),
            ("src/schedule/plan_test.cc", '"transport/inproc/factory.hpp"'),
            ("src/engine/engine_test.cc", '"tests/threads_as_ranks.hpp"'),
            ("include/stretto/status.hpp", "<tl/expected.hpp>"),
            ("include/stretto/engine.hpp", '"stretto/types.hpp"'),
            ("adapters/torch/hooks.cc", "<torch/torch.h>"),
        ]:
            self.assertEqual(self.found(path, include), [], path)

    def test_each_broken_rule_is_reported_with_its_line(self):
        for path, include in [
            ("src/base/log.cc", '"engine/progress.hpp"'),
            ("src/schedule/plan.cc", '"transport/tcp/socket.hpp"'),
            ("src/codec/half.cc", '"exchange/owner.hpp"'),
            ("src/novel/thing.cc", '"base/log.hpp"'),
            ("src/engine/progress.cc", "<torch/torch.h>"),
            ("src/engine/progress.cc", "<spdlog/spdlog.h>"),
            ("src/engine/progress.cc", "<boost/asio.hpp>"),
            ("src/engine/progress.cc", "<gtest/gtest.h>"),
            ("src/engine/progress.cc", '"cli/run.hpp"'),
            ("src/engine/progress.cc", '"tests/threads_as_ranks.hpp"'),
            ("include/stretto/engine.hpp", '"base/log.hpp"'),
            ("include/stretto/engine.hpp", "<unistd.h>"),
            ("include/stretto/engine.hpp", "<nlohmann/json.hpp>"),
            ("examples/hello.cc", '"base/log.hpp"'),
        ]:
            found = self.found(path, "<vector>", include)
            self.assertEqual(len(found), 1, (path, include, found))
            self.assertTrue(found[0].startswith(f"{path}:2: "), found[0])


if __name__ == "__main__":
    unittest.main()
