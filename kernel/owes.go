package kernel

import "sigmaos.dev/kernel/procs"

// owesAnswers says whether somebody is still to hear of the end of a proc: its home, or a session
// that waited for one and has not ended.
func (k *Kernel) owesAnswers() bool {
	owes := false
	if k.procs.With(func(v procs.View) { owes = v.Owes() }); owes {
		return true
	}
	k.sessions.mu.Lock()
	defer k.sessions.mu.Unlock()
	for t := range k.sessions.open {
		if t.waited.Load() {
			return true
		}
	}
	return false
}
