#include "train/text/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "kernels/error.h"
#include "train/text/files.h"

namespace tetra {
namespace {

// A text file, open for reading.
class TextFile {
 public:
  explicit TextFile(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(descriptor_ >= 0);
  }
  ~TextFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  int64_t size() const {
    struct stat status = {};
    check(::fstat(descriptor_, &status) == 0);
    return status.st_size;
  }

  void read(int64_t begin, unsigned char* out, int64_t size) const {
    while (size > 0) {
      const ssize_t got = ::pread(descriptor_, out, static_cast<size_t>(size), begin);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      check(got >= 0);
      require(got > 0, "data.text: {} has become shorter: it ends at byte {}", path_, begin);
      begin += got;
      out += got;
      size -= got;
    }
  }

 private:
  void check(bool done) const {
    require(done, "data.text: cannot read {}: {}", path_, std::generic_category().message(errno));
  }

  const std::string& path_;
  int descriptor_;
};

}  // namespace

Corpus Corpus::open(const std::vector<std::string>& patterns, const std::string& tokenizer, int64_t seq_len) {
  return Corpus(expand_files(patterns, "data.text"), make_tokenizer(tokenizer), seq_len);
}

Corpus::Corpus(const std::vector<std::string>& files, std::unique_ptr<Tokenizer> tokenizer, int64_t seq_len)
    : tokenizer_(std::move(tokenizer)), seq_len_(seq_len) {
  require(seq_len >= 1, "data.seq_len is {}; it must be at least 1", seq_len);
  for (const auto& path : files) {
    const TextFile file(path);
    const int64_t size = file.size();
    if (tokenizer_->tokens_are_bytes()) {
      files_.push_back({path, tokens_, size});
      tokens_ += size;
    } else {
      std::string text(static_cast<size_t>(size), '\0');
      file.read(0, reinterpret_cast<unsigned char*>(text.data()), size);
      const auto ids = tokenizer_->encode(text);
      stream_.insert(stream_.end(), ids.begin(), ids.end());
      tokens_ = static_cast<int64_t>(stream_.size());
    }
  }
  require(tokens_ >= seq_len, "data.text has {} tokens, fewer than seq_len {}; give more text or a smaller seq_len",
          tokens_, seq_len);
}

void Corpus::read_sample(int64_t index, int64_t* out) const {
  require(index >= 0 && index < samples(), "sample {} of data.text does not exist; there are {}", index, samples());
  const int64_t begin = index * seq_len_;
  if (tokenizer_->tokens_are_bytes()) {
    read_bytes(begin, out);
  } else {
    std::copy_n(stream_.begin() + begin, seq_len_, out);
  }
}

/// seq_len_ bytes of the stream, which may cross from file to file.
void Corpus::read_bytes(int64_t begin, int64_t* out) const {
  std::vector<unsigned char> bytes(static_cast<size_t>(seq_len_));
  auto file = std::upper_bound(files_.begin(), files_.end(), begin,
                               [](int64_t place, const File& next) { return place < next.begin; }) -
              1;
  for (int64_t done = 0; done < seq_len_; ++file) {
    const int64_t place = begin + done - file->begin;
    const int64_t count = std::min(seq_len_ - done, file->size - place);
    if (count > 0) {
      TextFile(file->path).read(place, bytes.data() + done, count);
      done += count;
    }
  }
  std::copy(bytes.begin(), bytes.end(), out);
}

}  // namespace tetra
