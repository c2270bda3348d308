// Package services runs the boot set: the programs without which a machine does nothing for its
// realms (named, the schedulers, the object store), and one dbd for each realm that uses databases.
// A service is started again whenever it ends, and is found by name or by its principal. What a
// service's session is served is the user's (Config.Serve). Users: kernel.
//
// Locks: Databases.mu, Service.mu and launches.mu; none is held while another is taken, or across a
// call to a service.
package services

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
)

// Config is what a Set needs of its user.
type Config struct {
	Machine    sigma.MachineID
	Programs   []Program // the boot set; empty on an ordinary machine of several
	Data       string    // directory of what is written down of services
	UIDBase    uint32    // services have the uids from two after it on
	Member     bool      // other machines may have the services that this one lacks
	StoreDelay time.Duration
	Start      time.Time // of sigmad
	Log        *slog.Logger
	Launcher   *launchers.Launchers
	Proxy      *dialproxy.Proxy
	Worked     *meter.Works
	Known      <-chan struct{} // closed when it is known what ran before this sigmad
	// External says that the names are kept elsewhere, so that named needs no room on the disk.
	External func() bool
	Go       func(func()) // begins what is waited for before the program ends
	// Serve answers a service's session until it ends.
	Serve func(ctx context.Context, conn session.Conn, p sigma.Principal)
	// Tell is told that a service has ended, or is there again.
	Tell func(event, service, message string)
	// Charge charges a realm for what a service did between two times.
	Charge func(now, from time.Time, service string, done sigma.Work)
}

// Set is the services of a machine. Safe for concurrent use.
type Set struct {
	cfg       Config
	ctx       context.Context // set by Begin
	byName    map[string]*Service
	databases *Databases
	launches  *launches // of services and sigmad, counted
}

// New makes the services of the programs that this machine has. None runs yet.
func New(cfg Config) (*Set, error) {
	x := &Set{cfg: cfg, byName: map[string]*Service{}, launches: newLaunches(cfg.Log, filepath.Join(cfg.Data,
		"launches"))}
	x.databases = &Databases{set: x, of: map[sigma.RealmID]*Service{}}
	return x, x.takeBootSet()
}

// Begin sets the context of services, and counts a start of sigmad. It is called before any runs.
func (x *Set) Begin(ctx context.Context) {
	x.ctx = ctx
	x.launches.begun(Sigmad)
}

// HasDatabases says whether this machine has the realms' databases.
func (x *Set) HasDatabases() bool { return x.databases.program.File != nil }

// Unused says whether a realm has never used a database of this machine.
func (x *Set) Unused(realm sigma.RealmID) bool { return x.databases.unused(realm) }

// ChargeDatabases charges a realm for all that its dbd has used since it was charged last. total is
// what this dbd has used since its launch; works is what it did, as far as it told.
func (x *Set) ChargeDatabases(now time.Time, s *Service, id uint64, total time.Duration, works []sigma.Work) {
	x.databases.charge(now, s, id, total, works)
}

// Launch is the launcher's number of the present incarnation; 0 if there is none.
func (s *Service) Launch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.launch
}

// Proc is the id of the present incarnation; "" if there is none.
func (s *Service) Proc() sigma.ProcID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Program is the name of the service's program.
func (s *Service) Program() string { return s.program.Name }

// Usage is what the service uses now, or, if it cannot be asked before ctx ends, what was measured
// last. One that is being restarted uses nothing. l is nil while there is no launcher.
func (s *Service) Usage(ctx context.Context, l *launch.Launcher) sigma.Usage {
	s.mu.Lock()
	id, m := s.launch, s.metered
	s.mu.Unlock()
	if l != nil && id != 0 {
		if now, err := s.set.cfg.Launcher.Meter(ctx, l, id); err == nil {
			m = now
			s.mu.Lock()
			s.metered = m
			s.mu.Unlock()
		}
	}
	if m.ID != id { // of an earlier incarnation
		m = launch.Metered{}
	}
	return sigma.Usage{UserTime: m.User, SystemTime: m.Sys, Memory: m.Memory, MemoryPeak: m.MemoryPeak, Tasks: m.Tasks}
}
