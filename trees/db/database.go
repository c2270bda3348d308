package db

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// database is one of a realm.
type database struct {
	t    *Tree
	name string
	id   uint64 // of its directory; those of its files follow
	dir  string
	def  definition
	eng  *engine

	sessions map[*session]bool // Tree.mu
	over     error             // Tree.mu; why no session can begin any more
	used     atomic.Int64      // connections
}

// filesOf is how many ids a database takes: its directory, info and session.
const filesOf = 3

func (t *Tree) newDatabaseLocked(name string) (*database, error) {
	d := &database{t: t, name: name, dir: filepath.Join(t.cfg.Dir, name), sessions: map[*session]bool{}}
	var err error
	if d.def, err = readDefinition(d.dir); err != nil {
		return nil, inside("db.open", err)
	}
	t.nextID += filesOf
	d.id = t.nextID
	d.eng, err = d.newEngine()
	return d, err
}

// dial connects to the database's server.
func (d *database) dial(ctx context.Context) (net.Conn, error) {
	if d.t.cfg.Dial == nil {
		return nil, sigma.Errorf("db.dial", sigma.KindUnsupported, "this server reaches no others")
	}
	return d.t.cfg.Dial(ctx, d.t.cfg.Realm, d.name)
}

// begin counts one more open session.
func (d *database) begin() (*session, error) {
	const op = "db.session"
	s := newSession(d)
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	switch most := d.t.cfg.Limits.Sessions; {
	case d.over != nil:
		return nil, d.over
	case d.t.sessions >= most:
		return nil, &sigma.Error{Op: op, Path: d.name, Kind: sigma.KindBusy,
			Msg:  limitMessage("the realm has %d sessions with databases open", most),
			Hint: "close some, or share them: a session is one connection"}
	}
	d.t.sessions++
	d.t.idle.Stop()
	d.sessions[s] = true
	return s, nil
}

func (d *database) forget(s *session) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if d.sessions[s] {
		delete(d.sessions, s)
		if d.t.sessions--; d.t.sessions == 0 && !d.t.closed {
			d.t.idle.Reset(unusedMax)
		}
	}
}

// connect takes a connection, of which there are so many.
func (d *database) connect(ctx context.Context) (*sql.Conn, error) {
	if most := d.t.cfg.Limits.Connections; d.used.Add(1) > int64(most) {
		d.used.Add(-1)
		return nil, &sigma.Error{Op: "db.connect", Path: d.name, Kind: sigma.KindBusy,
			Msg: limitMessage("the database has %d connections in use", most), Hint: "try again, or close sessions"}
	}
	c, err := d.eng.connect(ctx)
	if err != nil {
		d.used.Add(-1)
		return nil, err
	}
	return c, nil
}

func (d *database) release(c *sql.Conn) {
	c.Close()
	d.used.Add(-1)
}

// end ends all sessions, for that reason, and waits for it.
func (d *database) end(ctx context.Context, why error) error {
	d.t.mu.Lock()
	d.over = why
	var all []*session
	for s := range d.sessions {
		all = append(all, s)
	}
	d.t.mu.Unlock()
	for _, s := range all {
		if err := s.end(ctx, why); err != nil {
			return err
		}
		d.forget(s) // its owner may keep the handle for long
	}
	return inside("db.end", d.eng.pool.Close())
}

// info tells of the database.
func (d *database) info() query.Info {
	l := d.t.cfg.Limits
	d.t.mu.Lock()
	out := query.Info{Name: d.name, Engine: d.def.engine(), Sessions: len(d.sessions),
		Limits: query.InfoLimits{Sessions: l.Sessions, Connections: l.Connections, TimeMS: l.Time.Milliseconds(),
			TxIdleMS: l.TxIdle.Milliseconds(), IdleMS: l.Idle.Milliseconds(), Rows: l.Rows, Bytes: l.Bytes}}
	d.t.mu.Unlock()
	if out.Engine == query.EngineSQLite {
		n := int64(0)
		for _, name := range []string{dataFile, dataFile + "-wal"} {
			if st, err := os.Stat(filepath.Join(d.dir, name)); err == nil {
				n += st.Size()
			}
		}
		out.Bytes, out.Limits.File = &n, l.File
	}
	return out
}

// isLost says that a connection broke, and with it what was being done by it.
func isLost(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) { // the latter is a net.Error too
		return false
	}
	var n net.Error
	return errors.As(err, &n) || slices.ContainsFunc(brokenErrors, func(b error) bool { return errors.Is(err, b) })
}

// connectMax bounds making a connection.
const connectMax = 10 * time.Second
