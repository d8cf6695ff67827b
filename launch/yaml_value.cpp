#include "launch/yaml_value.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "kernels/error.h"
#include "launch/scalar.h"

namespace tetra {
namespace {

/// Length of the UTF-8 character at `at`, or 0 where there is none (Unicode, table 3-7).
size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const int first = byte(at);
  if (first < 0x80) {
    return 1;
  }
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) {
    return 0;
  }
  const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) {
    return 0;
  }
  for (size_t i = 2; i < length; ++i) {
    if (byte(at + i) < 0x80 || byte(at + i) > 0xBF) {
      return 0;
    }
  }
  return length;
}

/// In characters, from 1; yaml-cpp counts bytes.
int column_of(const std::string& text, size_t position) {
  const size_t line_end = position == 0 ? std::string::npos : text.rfind('\n', position - 1);
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(line_end == std::string::npos ? 0 : line_end + 1);
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(position);
  return 1 + static_cast<int>(std::count_if(begin, end, [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

Mark mark_of(const std::string& text, size_t position) {
  position = std::min(position, text.size());
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(position);
  return {1 + static_cast<int>(std::count(text.begin(), end, '\n')), column_of(text, position)};
}

void check_characters(const std::string& text, const Source& source) {
  bool indentation = true;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    if (length == 0) {
      fail("{}: byte 0x{:02x} is not UTF-8; the text must be UTF-8", source.at(mark_of(text, i)), c);
    }
    if (c < 0x20 && c != '\n' && c != '\r' && c != '\t') {
      fail("{}: control character 0x{:02x}; the text must be plain UTF-8", source.at(mark_of(text, i)), c);
    }
    if (indentation && c == '\t') {
      fail("{}: tab in the indentation; YAML wants spaces", source.at(mark_of(text, i)));
    }
    indentation = c == '\n' || (indentation && c == ' ');
    i += length;
  }
}

/// yaml-cpp 0.7 takes a quote that is never closed as one that ends with the text.
bool quote_is_closed(const std::string& text, size_t begin) {
  const char quote = text[begin];
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) {
        return true;
      }
      ++i;
    }
  }
  return false;
}

class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& text, const Source& source) : text_(text), source_(source) {}

  std::optional<Value> root;

  void OnDocumentStart(const YAML::Mark& mark) override {
    require(!root, "{}: this starts a second document; there must be one", at(mark));
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    Value value;
    value.text = written_null(position(mark));
    // yaml-cpp puts an empty value where the next token stands: its key's place says more.
    const bool use_key = value.text.empty() && !stack_.empty() && stack_.back().key;
    value.mark = use_key ? stack_.back().key->second : place(mark);
    if (!value.text.empty()) {
      check_plain(value.text, value.mark);
    }
    add(std::move(value));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail("{}: aliases (*) are not allowed; write the value out, or quote it if text is meant", at(mark));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& content) override {
    refuse_anchor(mark, anchor);
    Value value;
    value.mark = place(mark);
    value.text = content;
    value.kind = Value::Kind::text;
    if (tag == "!") {  // quoted or a block, or else a tag without a name
      const char first = text_[position(mark)];
      require(first != '!', "{}: tags (!) are not allowed", at(mark));
      require((first != '"' && first != '\'') || quote_is_closed(text_, position(mark)),
              "{}: the quote {} that opens here is not closed", at(mark), first);
    } else {
      refuse_tag(mark, tag);
      const bool is_key = !stack_.empty() && stack_.back().value.kind == Value::Kind::map && !stack_.back().key;
      require(!is_key || content != "<<", "{}: merge keys (<<) are not allowed; write the keys out", at(mark));
      if (!is_key) {
        value.kind = check_plain(content, value.mark);
      }
    }
    add(std::move(value));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Value value;
    std::optional<std::pair<std::string, Mark>> key;  // map: the key whose value comes next
  };

  size_t position(const YAML::Mark& mark) const { return std::min<size_t>(mark.pos, text_.size()); }
  Mark place(const YAML::Mark& mark) const { return {mark.line + 1, column_of(text_, position(mark))}; }
  std::string at(const YAML::Mark& mark) const { return source_.at(place(mark)); }

  /// The spelling of a null at `begin`; empty where the value was left out and another token stands there.
  std::string written_null(size_t begin) const {
    for (const std::string_view word : {"null", "Null", "NULL", "~"}) {
      const size_t end = begin + word.size();
      const bool ends = end >= text_.size() || std::string(" \t\r\n,]}").find(text_[end]) != std::string::npos;
      if (text_.compare(begin, word.size(), word) == 0 && ends) {
        return std::string(word);
      }
    }
    return "";
  }

  Value::Kind check_plain(const std::string& content, Mark mark) const {
    try {
      return plain_kind(content);
    } catch (const Error& error) {
      fail("{}: {}", source_.at(mark), error.what());
    }
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    require(anchor == 0, "{}: anchors (&) are not allowed; write the value out where it is used", at(mark));
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    require(tag.empty() || tag == "?", "{}: tags (!) are not allowed", at(mark));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Value::Kind kind) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    Frame frame;
    frame.value.kind = kind;
    frame.value.mark = place(mark);
    stack_.push_back(std::move(frame));
  }

  void close() {
    Value value = std::move(stack_.back().value);
    stack_.pop_back();
    add(std::move(value));
  }

  void add(Value value) {
    if (stack_.empty()) {
      root = std::move(value);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.value.kind == Value::Kind::list) {
      frame.value.items.push_back(std::move(value));
    } else if (!frame.key) {
      add_key(frame, value);
    } else {
      frame.value.entries.push_back({frame.key->first, frame.key->second, std::move(value)});
      frame.key.reset();
    }
  }

  void add_key(Frame& frame, const Value& value) const {
    require(value.kind == Value::Kind::text, "{}: a key must be text, not {}", source_.at(value.mark), describe(value));
    for (const Entry& entry : frame.value.entries) {
      require(entry.key != value.text, "{}: the key {} is given twice; the first is on line {}", source_.at(value.mark),
              value.text, entry.mark.line);
    }
    frame.key = {value.text, value.mark};
  }

  const std::string& text_;
  const Source& source_;
  std::vector<Frame> stack_;
};

std::string syntax_message(const YAML::Exception& error, const std::string& text) {
  std::string message = error.msg;
  const char first =
      error.mark.pos >= 0 && static_cast<size_t>(error.mark.pos) < text.size() ? text[error.mark.pos] : 0;
  if (first != 0 && std::string("*&!@`%").find(first) != std::string::npos) {
    message += fmt::format(" ({} has a meaning in YAML: quote the text)", first);
  }
  return message;
}

}  // namespace

std::string Source::at(Mark mark) const {
  return has_lines ? fmt::format("{}:{}:{}", name, mark.line, mark.column) : name;
}

Value parse_yaml(const std::string& original, const Source& source) {
  const bool byte_order_mark = original.rfind("\xEF\xBB\xBF", 0) == 0;
  const std::string text = byte_order_mark ? original.substr(3) : original;
  check_characters(text, source);
  std::istringstream stream(text);
  Builder builder(text, source);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const size_t position = error.mark.is_null() ? 0 : static_cast<size_t>(error.mark.pos);
    fail("{}: not YAML: {}", source.at(mark_of(text, position)), syntax_message(error, text));
  }
  const bool empty = !builder.root || (builder.root->kind == Value::Kind::null && builder.root->text.empty());
  require(!empty, "{}: {}", source.name, source.has_lines ? "the file is empty" : "no value is given");
  return std::move(*builder.root);
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return value.text.empty() ? "nothing" : "null";
    case Value::Kind::text:
      return fmt::format("the text '{}'", value.text);
    case Value::Kind::list:
      return "a list";
    case Value::Kind::map:
      return "a map";
    default:
      return value.text;
  }
}

}  // namespace tetra
