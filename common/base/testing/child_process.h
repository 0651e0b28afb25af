// Another process for a test, with its stdin and stdout on pipes.
#ifndef COMMON_BASE_TESTING_CHILD_PROCESS_H_
#define COMMON_BASE_TESTING_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace baton::testing {

class ChildProcess {
 public:
  // Runs `arguments[0]` with them. Failures end the test's process.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();  // Kills.
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  std::string ReadLine();
  // False, and what there is of a line, when the child has ended.
  bool ReadLineOrEnd(std::string* line);
  void WriteLine(const std::string& line);

  // Any thread.
  void Signal(int signal) const;
  // SIGKILL, and waits until the process is gone. Once, from one thread.
  void Kill();

 private:
  pid_t pid_ = -1;
  FILE* from_child_ = nullptr;
  FILE* to_child_ = nullptr;
};

}  // namespace baton::testing

#endif  // COMMON_BASE_TESTING_CHILD_PROCESS_H_
