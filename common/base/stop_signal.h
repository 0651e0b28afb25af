// Whether this process has been asked to stop: what it is connected to has most likely been asked
// as well, so a peer that vanishes now is no news for the log.
#ifndef COMMON_BASE_STOP_SIGNAL_H_
#define COMMON_BASE_STOP_SIGNAL_H_

namespace baton {

// True from the moment SIGINT or SIGTERM reaches a process that blocks them, also before anybody
// has taken the signal. Any thread; one system call until then.
bool StopRequested();

// For who takes the signal: it is pending no more.
void NoteStopRequested();

}  // namespace baton

#endif  // COMMON_BASE_STOP_SIGNAL_H_
