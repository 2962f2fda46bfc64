// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "sizes.hpp"
#include "terse/checkpoint/safetensors.hpp"

namespace bert {

/// A folder with a model of others: config.json, model.safetensors and tokenizer.json. Needs no LibTorch.
class Pretrained {
 public:
  /// Throws checkpoint_error for weights, and std::runtime_error for a config.json, that can't be read.
  explicit Pretrained(const std::string& folder)
      : sizes_(read_sizes(folder + "/config.json")),
        weights_(terse::checkpoint::File::read_foreign(folder + "/model.safetensors")) {}

  const Sizes& sizes() const { return sizes_; }
  /// Returns a parameter's elements, which live as long as this object; nullptr for a classifier that isn't there. Throws
  /// checkpoint_error for another parameter that is missing, or has another shape or type.
  const float* floats(const std::string& name, const std::vector<std::int64_t>& shape) const {
    if (name.rfind("classifier.", 0) == 0 && !weights_.contains(name)) return nullptr;
    return reinterpret_cast<const float*>(weights_.tensor(name, "F32", shape).data());
  }

 private:
  static Sizes read_sizes(const std::string& file) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error(file + ": can't be read");
    try {
      const nlohmann::json all = nlohmann::json::parse(in);
      return {all.at("num_hidden_layers"), all.at("hidden_size"),   all.at("num_attention_heads"),
              all.at("intermediate_size"), all.at("vocab_size"),    all.at("max_position_embeddings"),
              all.at("type_vocab_size"),   all.at("layer_norm_eps")};
    } catch (const nlohmann::json::exception& fault) {
      throw std::runtime_error(file + ": is no configuration of a BERT: " + fault.what());
    }
  }

  Sizes sizes_;
  terse::checkpoint::File weights_;
};

}  // namespace bert
