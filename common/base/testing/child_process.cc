#include "common/base/testing/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/check.h"

namespace baton::testing {

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  int in[2];
  int out[2];
  BATON_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_child_ = fdopen(in[1], "w");
  from_child_ = fdopen(out[0], "r");
}

ChildProcess::~ChildProcess() {
  Kill();
  fclose(to_child_);
  fclose(from_child_);
}

bool ChildProcess::ReadLineOrEnd(std::string* line) {
  line->clear();
  for (int c = fgetc(from_child_); c != '\n'; c = fgetc(from_child_)) {
    if (c == EOF) return false;
    line->push_back(static_cast<char>(c));
  }
  return true;
}

std::string ChildProcess::ReadLine() {
  std::string line;
  BATON_CHECK(ReadLineOrEnd(&line)) << "the child ended after \"" << line << "\"";
  return line;
}

void ChildProcess::WriteLine(const std::string& line) {
  BATON_CHECK(fprintf(to_child_, "%s\n", line.c_str()) > 0 && fflush(to_child_) == 0);
}

void ChildProcess::Signal(int signal) const { kill(pid_, signal); }

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace baton::testing
