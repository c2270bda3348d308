package treeserver

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A server's processor time cannot be told apart by realms request by request: a thread works on
// many. So one request in sampleEach has its thread for itself, and what that used is what a
// request of its class costs: of the same message, and as many bytes within a factor of eight. What
// a realm's requests cost is estimated by how many it made of each class.

const (
	// sampleEach is chosen so that measuring, two system calls and a thread that is not shared,
	// costs some 1 % of the cheapest request.
	sampleEach = 64
	// samplesMax requests are measured at a time: each keeps a thread.
	samplesMax = 4
	// sampleMemory is how many samples of a class weigh in its mean.
	sampleMemory = 256
	// sampleGuess is what a class is taken to cost before it was measured.
	sampleGuess = 10 * time.Microsecond

	kinds   = 80 // of requests: half their types' numbers, as types of requests are even
	sizes   = 4  // below 1 KiB, below 8, below 64, more
	classes = kinds * sizes
)

// work is what one realm has had done.
type work struct {
	requests [classes]atomic.Uint32 // wrapping; by class
	in, out  atomic.Uint64          // bytes of messages

	told            [classes]uint32 // of Work only
	toldIn, toldOut uint64          // as told
}

// classOf is the class of a request that has so many bytes, with its answer.
func classOf(kind sigmap.Type, bytes int) int {
	size := 0
	for b := bytes >> 10; b > 0 && size < sizes-1; b >>= 3 {
		size++
	}
	return int(kind/2)%kinds*sizes + size
}

// weights are what requests cost by class.
type weights struct {
	busy atomic.Int32 // samples being taken

	mu    sync.Mutex
	mean  [classes]time.Duration // mu
	count [classes]int           // mu
}

// begin begins a sample, unless enough are being taken.
func (w *weights) begin() (since time.Duration, is bool) {
	if w.busy.Add(1) > samplesMax {
		w.busy.Add(-1)
		return 0, false
	}
	runtime.LockOSThread()
	return threadTime(), true
}

// end ends it, by the goroutine that began it; counts says that it is one of that class.
func (w *weights) end(class int, since time.Duration, counts bool) {
	used := threadTime() - since
	runtime.UnlockOSThread()
	w.busy.Add(-1)
	if !counts {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[class] = min(w.count[class]+1, sampleMemory)
	w.mean[class] += (used - w.mean[class]) / time.Duration(w.count[class])
}

// threadTime is the processor time of the thread.
func threadTime() time.Duration {
	const clockThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	// SAFETY: the kernel writes one timespec to t, which outlives the call.
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThread, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano())
}

// Work is what was new of all realms, the system's among them, since it was called last. It is for
// one caller at a time.
func (t *Turns) Work() (out []sigma.Work) {
	t.mu.Lock()
	accounts := make([]*account, 0, len(t.accounts))
	for realm, a := range t.accounts {
		accounts = append(accounts, a)
		if a.sessions == 0 && a.inFlight == 0 { // all that it had is told now
			delete(t.accounts, realm)
		}
	}
	t.mu.Unlock()
	t.weights.mu.Lock()
	mean := t.weights.mean
	for i := range mean {
		if t.weights.count[i] == 0 {
			mean[i] = sampleGuess
		}
	}
	t.weights.mu.Unlock()
	for _, a := range accounts {
		w, done := &a.work, sigma.Work{Realm: a.realm}
		for i := range w.requests {
			if n := w.requests[i].Load(); n != w.told[i] {
				done.Requests += uint64(n - w.told[i])
				done.CPU += time.Duration(n-w.told[i]) * mean[i]
				w.told[i] = n
			}
		}
		in, sent := w.in.Load(), w.out.Load()
		done.In, done.Out = sigma.Bytes(in-w.toldIn), sigma.Bytes(sent-w.toldOut)
		if w.toldIn, w.toldOut = in, sent; done.Requests > 0 || done.In > 0 || done.Out > 0 {
			out = append(out, done)
		}
	}
	return out
}

// count notes a request that was answered.
func (w *work) count(class, in, out int) {
	w.requests[class].Add(1)
	w.in.Add(uint64(in))
	w.out.Add(uint64(out))
}
