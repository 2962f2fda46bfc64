// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "did_you_mean.hpp"
#include "idx.hpp"
#include "words.hpp"

// How options.cpp makes options of each kind out of CLI11's: with errors of one clear line, and help to match.

namespace train {

template <class Value, std::size_t Count>
Value value_of(const std::array<Word<Value>, Count>& words, const std::string& option,
               std::string_view given) {
  for (const Word<Value>& entry : words)
    if (given == entry.word) return entry.value;
  std::array<std::string_view, Count> names;
  for (std::size_t k = 0; k < Count; ++k) names[k] = words[k].word;
  throw input_error(fmt::format("{}: '{}' is not one of {}{}", option, given, all_words(words, ", "),
                                did_you_mean(given, names)));
}

template <class Value, std::size_t Count, class Target>
CLI::Option* add_choice(CLI::App& app, const std::string& option, const std::array<Word<Value>, Count>& words,
                        Target& target, const std::string& text) {
  CLI::Option* const added = app.add_option_function<std::string>(
      option,
      [&words, &target, option](const std::string& given) { target = value_of(words, option, given); }, text);
  for (const Word<Value>& entry : words)
    if (target == entry.value) added->default_str(entry.word);
  return added->type_name(all_words(words, "|"));
}

// CLI11's own ranges let "nan" pass and convert "1.5" for an integer into an unclear message.
template <class Number>
std::optional<Number> number_of(const std::string& given) {
  Number value{};
  const char* const end = given.data() + given.size();
  const std::from_chars_result result = std::from_chars(given.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return std::nullopt;
  return value;
}

/// `Target` may be optional.
template <class Number, class Target>
CLI::Option* add_number(CLI::App& app, const std::string& option, Target& target,
                        const std::function<bool(Number)>& allowed, const std::string& wanted,
                        const std::string& default_text, const std::string& text) {
  CLI::Option* const added = app.add_option_function<std::string>(
      option,
      [&target, allowed, wanted, option](const std::string& given) {
        const std::optional<Number> value = number_of<Number>(given);
        if (!value || !allowed(*value))
          throw input_error(fmt::format("{}: '{}' is not {}", option, given, wanted));
        target = *value;
      },
      text);
  if (!default_text.empty()) added->default_str(default_text);
  return added;
}

inline CLI::Option* add_file(CLI::App& app, const std::string& option, std::string& target, const char* type,
                             const std::string& text) {
  return app
      .add_option_function<std::string>(
          option,
          [&target, option](const std::string& given) {
            if (given.empty()) throw input_error(option + ": needs a path, but got an empty one");
            target = given;
          },
          text)
      ->type_name(type);
}

// CLI11 writes defaults as NAME=default, which reads as if that were to be typed.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_size() > 0 ? option->get_type_name() : "";
    return type.empty() ? "" : " " + type;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string& standard = option->get_default_str();
    return option->get_description() + (standard.empty() ? "" : " [" + standard + "]");
  }
};

}  // namespace train
