// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "method.hpp"

namespace train {

/// Words behind what a line begins with; lines that go on are indented.
inline std::string wrapped(std::string line, std::string_view words, std::size_t indent) {
  constexpr std::size_t width = 108;
  std::size_t column = line.size();
  for (bool first = true; !words.empty(); first = false) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    if (!first && column + 1 + word.size() > width) {
      line += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      line += ' ';
      ++column;
    }
    line += word;
    column += word.size();
  }
  return line + "\n";
}

/// A line for each method of the families.
inline std::string help_of(std::initializer_list<Family> families) {
  constexpr std::size_t indent = 29;
  std::string text;
  for (const Method& method : methods())
    if (std::find(families.begin(), families.end(), method.family) != families.end())
      text += wrapped(fmt::format("  {:<{}}", method.name, indent - 2), method.help, indent);
  return text;
}

inline std::string synonyms() {
  std::string text;
  for (const Method& method : methods())
    if (method.synonym != nullptr)
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", method.synonym, method.name);
  return wrapped("  Known as well: ", text + ".", 2);
}

inline constexpr const char* help_examples =
    "Examples:\n"
    "  train --plot loss.svg                         adam and one-bit-adam on 4 threads\n"
    "  train --optimizers one-bit-adam --model cnn --topology ring --granularity block\n"
    "  train --optimizers one-bit-adam --layers '*.bias=dense,*.weight=low-rank'\n"
    "  train --optimizers momentum-sgd,power-sgd,deep-gradient-compression --ratio 0.001\n"
    "  train --optimizers pmsgd,dmsgd,decentlam --ranks 8 --batch 256 --label-skew 0.1\n"
    "  train --optimizers momentum-sgd,local-sgd,overlap-local-sgd --delay 5 --bandwidth 100 --straggler "
    "1:2\n"
    "  mpirun -n 4 train --transport mpi --json runs.json\n"
    "  train --device cuda --ranks 2 --batch 512     models on the GPU, where there is one\n"
    "  train --checkpoint state --checkpoint-every 500; train --checkpoint state --resume state\n"
    "  train --ranks 3 --checkpoint state --resume auto --elastic     from a save of 4 ranks\n\n"
    "Exit codes: 0 done, 1 training failed, 2 an option or a file can't be used; with --checkpoint, 69 "
    "another\n"
    "run has the directory, 75 saved and stopped after SIGTERM or SIGUSR1.";

/// What `--help` ends with.
inline std::string help_footer() {
  return "Optimizers, and the messages and topology of their compressed steps:\n" +
         help_of({Family::averaging}) +
         "\nLocal updates: ranks step on their own, momentum-sgd by default, and synchronize every --period "
         "steps:\n" +
         help_of({Family::local_updates}) +
         "\nDecentralized ones, in which ranks mix parameters of their own with their neighbours' in "
         "--graph:\n" +
         help_of({Family::gossip, Family::compressed_gossip}) + synonyms() + "\n" + help_examples;
}

/// And that of the quickstart's trainer.
inline constexpr const char* quickstart_footer =
    "Optimizers, and the messages and topology of their compressed steps; tools/train has many more:\n"
    "  adam                       dense; the reference of one-bit-adam\n"
    "  one-bit-adam               signs of Adam's momentum, error feedback; --topology\n"
    "  momentum-sgd               dense\n\n"
    "Of an option that is given more than once the last counts.\n\n"
    "Exit codes: 0 done, 1 training failed, 2 an option or a file can't be used; with --checkpoint, 69 "
    "another\n"
    "run has the directory, 75 saved and stopped after SIGTERM or SIGUSR1.";

}  // namespace train
