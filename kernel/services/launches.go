package services

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"sigmaos.dev/trees/atomicfile"
)

// launches counts how often each service and sigmad was started since "sigma up", which removes the
// file: sigmad may die at any time and its memory with it. A count that cannot be kept is a little
// too low later, and nothing else. Safe for concurrent use.
type launches struct {
	log  *slog.Logger
	path string

	mu sync.Mutex
	of map[string]uint32 // mu; by the name of the service
}

func newLaunches(log *slog.Logger, path string) *launches {
	l := &launches{log: log, path: path, of: map[string]uint32{}}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &l.of)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("restarts are counted anew", "err", err)
	}
	if l.of == nil {
		l.of = map[string]uint32{}
	}
	return l
}

// begun counts a start, and returns how many there were before.
func (l *launches) begun(name string) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[name]++
	l.keepLocked()
	return l.of[name] - 1
}

// forget begins anew with a service that nobody needs any more.
func (l *launches) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, name)
	l.keepLocked()
}

// restarts is how often something was started again.
func (l *launches) restarts(name string) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.of[name], 1) - 1
}

func (l *launches) keepLocked() {
	text, err := json.Marshal(l.of)
	if err == nil {
		err = atomicfile.Write(l.path, text)
	}
	if err != nil {
		l.log.Warn("restarts cannot be counted", "err", err)
	}
}
