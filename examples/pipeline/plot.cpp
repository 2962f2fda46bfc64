// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "../../tools/train/picture.hpp"
#include "report.hpp"

namespace pipeline {

void write_plot(const Options& options, const std::vector<Run>& runs) {
  using Json = nlohmann::ordered_json;
  Json by_epoch = Json::array(), by_bytes = Json::array();
  double lowest = HUGE_VAL, highest = 0;
  for (const auto& group : by_coding(options, runs)) {
    const Coding& coding = group.front()->coding;
    Json over_epochs = Json::array(), over_bytes = Json::array();
    double loss = 0;
    for (std::size_t e = 0; e < group.front()->epochs.size(); ++e) {
      std::vector<double> losses, megabytes;
      for (const Run* run : group) {
        const Epoch& epoch = run->epochs[e];
        losses.push_back(epoch.loss);
        megabytes.push_back(static_cast<double>(epoch.forward_bytes + epoch.backward_bytes) / 1e6);
      }
      loss = spread_of(losses).mean;
      over_epochs.push_back({e + 1, loss});
      over_bytes.push_back({spread_of(megabytes).mean, loss});
      lowest = std::min(lowest, loss);
      highest = std::max(highest, loss);
    }
    Json series{{"name", fmt::format("{} ({:.3f})", name(coding), loss)},
                {"points", std::move(over_epochs)},
                {"marks", true},
                {"dash", coding.method == Method::direct ? 1 : 0}};
    if (coding.method == Method::exact) series["color"] = "ink";
    by_epoch.push_back(series);
    series["points"] = std::move(over_bytes);
    by_bytes.push_back(std::move(series));
  }
  Json loss_axis{
      {"label", fmt::format("training loss{}", options.task == Task::text ? ", nats per character" : "")},
      {"log", highest > 2 * lowest}};
  Json epochs{{"title", "Loss against epochs"},
              {"x", {{"label", "epoch"}}},
              {"y", loss_axis},
              {"series", std::move(by_epoch)}};
  loss_axis.erase("label");
  Json traffic{{"title", "Loss against traffic"},
               {"x", {{"label", "MB sent by all stages, both directions"}, {"log", true}}},
               {"y", loss_axis},
               {"series", std::move(by_bytes)}};
  train::write_picture(
      options.plot,
      {{"title",
        "4/8: activations in 4 bits forward, gradients in 8 bits backward; in brackets the last loss"},
       {"panels", {std::move(epochs), std::move(traffic)}}});
}

}  // namespace pipeline
