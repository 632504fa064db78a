// The kernel in front of one that starts while it ends, on a host. When it ends is drawn: at once, in some round, or
// when all else waits. Until then what it writes holds no numbers, and whatever it writes or may still read must be
// left as it is. A kernel that is launched plainly begins after its end. Knows no kernel.
#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace host {
struct Range { const void* begin; unsigned long long bytes; };

inline std::string wrong;
inline void fail(const std::string& why) {
  if (wrong.empty()) wrong = why;
}

struct Front {
  struct Kept { unsigned char* at; std::vector<unsigned char> real, meanwhile; };
  std::vector<Range> writes;  // nothing: the launch behind it is a plain one
  Range reads = {};
  bool last = false, ended = true;  // last: nothing is drawn
  unsigned round = 0;
  unsigned long long copied = 0;  // bytes that the kernel behind it asked for before its end
  std::vector<Kept> kept;

  void launched(const Range* written, int count, Range read, bool latest) {
    writes.assign(written, written + count), reads = read, last = latest, copied = 0;
  }
  bool plain() const { return writes.empty(); }
  void keep(const Range& range, bool hidden) {
    auto* at = (unsigned char*)range.begin;
    kept.push_back({at, {at, at + range.bytes}, {}});
    if (hidden) memset(at, 0xFF, range.bytes);
    kept.back().meanwhile.assign(at, at + range.bytes);
  }
  void begin(std::mt19937& random) {
    const unsigned habit = random() % 3, some = 1u << random() % 8, drawn = random() % some;
    round = last || habit == 0 ? ~0u : habit == 1 ? drawn : 0;
    if (plain()) return;
    ended = false;
    for (const Range& range : writes) keep(range, true);
    keep(reads, false);
  }
  void pass(unsigned now) {
    if (now >= round) end();
  }
  void end() {
    if (ended) return;
    ended = true;
    for (; !kept.empty(); kept.pop_back()) {  // the other way round: ranges may overlap
      const Kept& one = kept.back();
      const bool touched = memcmp(one.at, one.meanwhile.data(), one.meanwhile.size());
      if (touched) fail("a store to what the kernel in front still uses");
      memcpy(one.at, one.real.data(), one.real.size());
    }
  }
};
inline Front front;
}  // namespace host
