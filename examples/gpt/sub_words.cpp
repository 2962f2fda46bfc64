// SPDX-License-Identifier: Apache-2.0

// Makes text into numbers of sub-words, which the program `gpt` trains on: reads the prose in all .md, .pod and .txt files (.rst.txt, too) below
// the folders, trains a vocabulary on it with Debian's sentencepiece, and encodes it. Every 25th file is held out.
//
//   gpt_sub_words OUT [WORDS [FOLDER...]]     2048 sub-words, and what Debian's perl-doc and python3.11-doc install, unless given
//
// A program of its own: Debian's sentencepiece and LibTorch bring two libraries of Protocol Buffers, which crash in one process.

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text.hpp"

namespace {

namespace fs = std::filesystem;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

/// Removes the markup of POD (L<perlop>) and of reStructuredText (:func:`print`), and makes all white space single blanks.
std::string without_markup(std::string_view paragraph) {
  std::string text;
  for (std::size_t k = 0; k < paragraph.size(); ++k) {
    const char c = paragraph[k];
    if (is_letter(c) && paragraph.substr(k + 1, 1) == "<") continue;
    if (c == ':') {
      const std::size_t end = paragraph.find_first_of(":` \n", k + 1);
      if (paragraph.substr(std::min(end, paragraph.size()), 2) == ":`") k = end + 1;
      if (k == end + 1) continue;
    }
    if (std::string_view("*`|<>").find(c) != std::string_view::npos) continue;
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank)
      text += c;
    else if (!text.empty() && text.back() != ' ')
      text += ' ';
  }
  return text;
}

/// False for code, tables and headings.
bool is_prose(const std::string& text) {
  const auto letters =
      std::count_if(text.begin(), text.end(), [](char c) { return is_letter(c) || c == ' '; });
  return text.size() >= 60 && static_cast<double>(letters) >= 0.9 * static_cast<double>(text.size());
}

void add_prose(const fs::path& path, std::vector<std::string>& paragraphs) {
  std::ifstream file(path);
  std::string paragraph, line;
  const auto finish = [&] {
    if (std::string text = without_markup(paragraph); is_prose(text)) paragraphs.push_back(std::move(text));
    paragraph.clear();
  };
  while (std::getline(file, line)) {
    if (line.empty()) finish();
    paragraph += line + "\n";
  }
  finish();
}

/// In an order that doesn't depend on the file system.
std::vector<fs::path> files_below(const std::vector<fs::path>& folders) {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (const std::string kind = entry.path().extension();
          entry.is_regular_file() && (kind == ".md" || kind == ".pod" || kind == ".txt"))
        files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void check(const sentencepiece::util::Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.ToString());
}

class Paragraphs final : public sentencepiece::SentenceIterator {
 public:
  explicit Paragraphs(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return k_ == all_.size(); }
  void Next() override { ++k_; }
  const std::string& value() const override { return all_[k_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  std::size_t k_ = 0;
};

std::string train_vocabulary(const std::vector<std::string>& paragraphs, int words) {
  Paragraphs iterator(paragraphs);
  std::string model;
  check(sentencepiece::SentencePieceTrainer::Train(
            std::unordered_map<std::string, std::string>{{"vocab_size", std::to_string(words)},
                                                         {"input_sentence_size", "10000"},
                                                         {"shuffle_input_sentence", "false"},
                                                         {"character_coverage", "0.9999"},
                                                         {"num_threads", "1"},
                                                         {"minloglevel", "2"}},
            &iterator, &model),
        "training a vocabulary of " + std::to_string(words) + " sub-words");
  return model;
}

gpt::Tokens encode(const sentencepiece::SentencePieceProcessor& vocabulary,
                   const std::vector<std::string>& paragraphs) {
  gpt::Tokens tokens;
  std::vector<int> ids;
  for (const std::string& paragraph : paragraphs) {
    check(vocabulary.Encode(paragraph, &ids), "encoding a paragraph");
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.push_back(vocabulary.eos_id());
  }
  return tokens;
}

gpt::Text make_text(const std::vector<fs::path>& folders, int words) {
  std::vector<std::string> training, held_out;
  const std::vector<fs::path> files = files_below(folders);
  for (std::size_t k = 0; k < files.size(); ++k) add_prose(files[k], k % 25 == 24 ? held_out : training);
  if (held_out.empty())
    throw std::runtime_error(
        "there is not enough text: install Debian's perl-doc or python3.11-doc, or name folders with 25 or "
        "more files");
  sentencepiece::SentencePieceProcessor vocabulary;
  check(vocabulary.LoadFromSerializedProto(train_vocabulary(training, words)), "reading the vocabulary");
  gpt::Text text{{}, encode(vocabulary, training), encode(vocabulary, held_out)};
  for (int id = 0; id < vocabulary.GetPieceSize(); ++id) text.words.push_back(vocabulary.IdToPiece(id));
  return text;
}

/// The folders of prose that any version of the packages installs.
std::vector<fs::path> documentation() {
  std::set<fs::path> folders;
  for (const auto& [parent, child] :
       {std::pair{"/usr/share/perl", "pod"}, {"/usr/share/doc", "html/_sources"}})
    for (const auto& entry : fs::directory_iterator(parent)) {
      const std::string name = entry.path().filename();
      const bool wanted = name.rfind("python3.", 0) == 0 || child == std::string("pod");
      if (wanted && fs::exists(entry.path() / child)) folders.insert(fs::canonical(entry.path() / child));
    }
  return {folders.begin(), folders.end()};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw std::runtime_error("usage: gpt_sub_words OUT [WORDS [FOLDER...]]");
    const std::vector<fs::path> folders(argv + std::min(argc, 3), argv + argc);
    const gpt::Text text =
        make_text(folders.empty() ? documentation() : folders, argc > 2 ? std::atoi(argv[2]) : 2048);
    gpt::write_text(argv[1], text);
    std::printf("%zu sub-words of training, %zu held out\n", text.training.size(), text.held_out.size());
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "gpt_sub_words: %s\n", fault.what());
    return EXIT_FAILURE;
  }
}
