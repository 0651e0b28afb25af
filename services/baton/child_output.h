// The output of a child process as lines for the terminal: each stands behind the child's name
// once.
#ifndef SERVICES_BATON_CHILD_OUTPUT_H_
#define SERVICES_BATON_CHILD_OUTPUT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton {

class ChildOutput {
 public:
  // `name_width`: of the longest name, so that columns stand below each other.
  ChildOutput(std::string name, size_t name_width);

  // Takes what was read and returns the lines that are complete, labelled. A line longer than
  // 16 KiB is cut into several.
  std::vector<std::string> Take(absl::string_view bytes);
  // The output is over: what has no newline is a line as well.
  std::vector<std::string> End();

  // The last line, without the "baton worker: " before it: where a command says why it failed.
  const std::string& last_words() const { return last_words_; }

  // The line under the child's name. Log lines of Baton name their process themselves: there the
  // name moves to the front. JSON objects are for programs and stay as they are.
  std::string Label(absl::string_view line) const;

 private:
  void Complete(std::vector<std::string>& lines);

  const std::string name_;
  const size_t name_width_;
  std::string partial_;
  std::string last_words_;
};

}  // namespace baton

#endif  // SERVICES_BATON_CHILD_OUTPUT_H_
