package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

const (
	requestMax  = 24 << 20 // bytes of one request: a blob of 16 MiB in base64
	preparedMax = 64       // statements of one session
)

// limitMessage says that a limit was reached, in words that name it.
func limitMessage(format string, most any) string {
	return fmt.Sprintf(format, most) + ", which is the limit"
}

// session is one conversation with a database. It has a connection from its first statement on.
type session struct {
	d    *database
	ctx  context.Context // of the session: ends what runs
	stop context.CancelFunc

	turn     chan struct{} // held by who works with what follows
	pending  []byte        // of a request that is being written
	answer   *answer       // nil = there is none, or it was read to its end
	rest     []string      // of a batch: what is to be run when answer is made
	batch    query.Request // what rest was asked with
	conn     *sql.Conn     // nil before the first statement
	kill     func()        // has the server end what runs; nil = the context does
	prepared map[uint32]*sql.Stmt
	texts    map[uint32]string // of prepared statements
	last     uint32            // number of a prepared statement
	open     bool              // a transaction, as far as words tell
	over     error             // why it is over
	idle     *time.Timer
	idles    int // counts what was asked, so that a timer knows whether something was since
}

func newSession(d *database) *session {
	s := &session{d: d, turn: make(chan struct{}, 1), prepared: map[uint32]*sql.Stmt{}, texts: map[uint32]string{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// enter takes the turn.
func (s *session) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return sigma.Wrap("db.session", s.d.name, ctx.Err())
	}
	s.idles++
	if s.idle != nil {
		s.idle.Stop()
	}
	return nil
}

// leave gives the turn back and begins to wait for what is asked next.
func (s *session) leave() {
	if s.over == nil && s.conn != nil {
		wait := s.d.t.cfg.Limits.Idle
		if s.answer != nil {
			wait = s.d.t.cfg.Limits.Time
		} else if s.inTransaction() {
			wait = s.d.t.cfg.Limits.TxIdle
		}
		n := s.idles
		s.idle = time.AfterFunc(wait, func() { s.tooIdle(n, wait) })
	}
	<-s.turn
}

// tooIdle ends a session of which nothing was asked since the n-th time.
func (s *session) tooIdle(n int, wait time.Duration) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.idles != n || s.over != nil {
		return
	}
	err := &sigma.Error{Op: "db.session", Path: s.d.name, Kind: sigma.KindTimeout,
		Msg: limitMessage("nothing was asked in the session for %v", wait), Hint: "open another"}
	if s.inTransaction() {
		err.Msg = limitMessage("nothing was asked in the transaction for %v", wait) + "; it was rolled back"
		err.Hint = "begin it again, and make it shorter"
	}
	s.finish(err)
}

// inTransaction says whether a transaction is open.
func (s *session) inTransaction() bool {
	if s.conn == nil {
		return false
	}
	is := s.open
	s.conn.Raw(func(c any) error {
		if now, known := s.d.eng.inTransaction(c); known {
			is = now
		}
		return nil
	})
	return is
}

// finish ends the session, whose turn is held: what runs is stopped and what was not committed
// rolled back.
func (s *session) finish(why error) {
	if s.over != nil {
		return
	}
	s.drop()
	s.cut(why)
}

// cut is finish that leaves the answer to be read.
func (s *session) cut(why error) {
	s.over = why
	s.stop()
	if s.idle != nil {
		s.idle.Stop()
	}
	for _, st := range s.prepared {
		st.Close()
	}
	s.prepared, s.pending = nil, nil
	if s.conn != nil {
		s.d.release(s.conn)
		s.conn = nil
	}
}

// end is finish for who does not have the turn.
func (s *session) end(ctx context.Context, why error) error {
	s.stop()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return sigma.Wrap("db.session", s.d.name, ctx.Err())
	}
	s.finish(why)
	<-s.turn
	return nil
}

// close ends the session for its owner, who does not wait for it.
func (s *session) close() {
	s.stop()
	s.d.t.work.Go(func() {
		s.end(context.Background(), sigma.Errorf("db.session", sigma.KindInvalid, "the session is closed"))
		s.d.forget(s)
	})
}

// drop forgets an answer, of which the rest is not wanted.
func (s *session) drop() {
	s.rest = nil
	if s.answer != nil {
		s.answer.close()
		s.answer = nil
	}
}

// write adds to the request.
func (s *session) write(ctx context.Context, p []byte) (int, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	if s.over != nil {
		return 0, s.over
	}
	s.drop()
	if len(s.pending)+len(p) > requestMax {
		s.pending = nil
		return 0, &sigma.Error{Op: "db.session", Path: s.d.name, Kind: sigma.KindTooBig,
			Msg: limitMessage("the request has more than %d MiB", requestMax>>20), Hint: "write less at a time"}
	}
	s.pending = append(s.pending, p...)
	return len(p), nil
}

// read gives the next bytes of the answer to what was written; none at its end.
func (s *session) read(ctx context.Context, p []byte) (int, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	return s.readLocked(ctx, p)
}

// run is write and read in one.
func (s *session) run(ctx context.Context, request []byte, most int) ([]byte, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if len(request) > 0 {
		s.drop()
		s.pending = append(s.pending[:0], request...)
	}
	buf := make([]byte, most)
	n, err := s.readLocked(ctx, buf)
	return buf[:n:n], err
}

func (s *session) readLocked(ctx context.Context, p []byte) (int, error) {
	if len(s.pending) > 0 {
		text := s.pending
		s.pending = nil
		s.answer = s.begin(ctx, text)
	}
	a := s.answer
	if a == nil {
		if s.over != nil {
			return 0, s.over
		}
		return 0, nil
	}
	a.fill(ctx, len(p))
	for a.done && len(a.out) < len(p) && len(s.rest) > 0 {
		a = s.following(ctx, a)
		a.fill(ctx, len(p))
	}
	n := copy(p, a.out)
	if a.out = a.out[n:]; a.done && len(a.out) == 0 && len(s.rest) == 0 {
		s.answer = nil
	}
	return n, nil
}

// begin starts what a request asks. What goes wrong is the answer.
func (s *session) begin(ctx context.Context, text []byte) *answer {
	a := &answer{s: s}
	r, err := query.Parse(text)
	if err == nil && len(r.Batch) > 0 {
		s.batch, s.rest = *r, r.Batch
		s.batch.Batch = nil
		return s.following(ctx, a)
	}
	if err == nil {
		err = s.do(ctx, a, r)
	}
	if err != nil {
		a.fail(err)
	}
	return a
}

// following starts the next statement of a batch. Its answer follows what is left of before.
func (s *session) following(ctx context.Context, before *answer) *answer {
	a := &answer{s: s, out: before.out}
	r := s.batch
	r.SQL, s.rest = s.rest[0], s.rest[1:]
	if err := s.do(ctx, a, &r); err != nil {
		a.fail(err)
	}
	s.answer = a
	return a
}

// do does it.
func (s *session) do(ctx context.Context, a *answer, r *query.Request) error {
	if s.over != nil {
		return &overError{s.over}
	}
	if r.Release != 0 {
		if st := s.prepared[r.Release]; st != nil {
			st.Close()
		}
		delete(s.prepared, r.Release)
		delete(s.texts, r.Release)
		a.finish(query.End{})
		return nil
	}
	if err := s.connected(ctx); err != nil {
		return err
	}
	a.begin(r)
	defer a.follow(ctx)()
	switch {
	case r.Transaction != "":
		return s.transaction(a, r)
	case r.Prepare:
		return s.prepare(a, r)
	}
	return a.run(r)
}

// overError is an error of a session that is over: nothing was asked of the engine.
type overError struct{ error }

func (e *overError) Unwrap() error { return e.error }

// connected makes the connection.
func (s *session) connected(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	ctx, cancel := s.joined(ctx)
	defer cancel()
	c, err := s.d.connect(ctx)
	if err == nil && s.d.eng.entered != nil {
		if s.kill, err = s.d.eng.entered(ctx, c); err != nil {
			s.d.release(c)
		}
	}
	if err != nil {
		return s.unreachable(ctx, err)
	}
	s.conn = c
	return nil
}

// unreachable is the error of a connection that could not be made.
func (s *session) unreachable(ctx context.Context, err error) error {
	f, known := s.d.eng.failure(err)
	if known && f.Kind == sigma.KindPermission.String() { // whose user it is, is in the URL
		return &sigma.Error{Op: "db.connect", Path: s.d.name, Kind: sigma.KindPermission,
			Msg:  "the database's server does not let the URL's user in",
			Hint: "make the database known anew, with the right password: sigma sql rm, sigma sql create --url"}
	}
	if known || ctx.Err() != nil || sigma.KindOf(err) == sigma.KindBusy {
		return err
	}
	s.d.t.cfg.Log.Warn("a database cannot be reached", "database", s.d.name, "err", s.d.def.redacted(err))
	hint := "see that its server runs, and is where sigma sql create was told"
	if s.d.def.URL == "" {
		return inside("db.connect", err)
	}
	return &sigma.Error{Op: "db.connect", Path: s.d.name, Kind: sigma.KindUnavailable,
		Msg: "the database's server cannot be reached", Hint: hint}
}

// joined is a context that ends with the request, and with the session.
func (s *session) joined(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	off := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { off(); cancel() }
}

func (s *session) prepare(a *answer, r *query.Request) error {
	if len(s.prepared) >= preparedMax {
		return &sigma.Error{Op: "db.prepare", Path: s.d.name, Kind: sigma.KindBusy,
			Msg: limitMessage("the session has %d prepared statements", preparedMax), Hint: "close some"}
	}
	st, err := s.conn.PrepareContext(a.ctx, r.SQL)
	if err != nil {
		return err
	}
	s.last++
	s.prepared[s.last], s.texts[s.last] = st, r.SQL
	a.finish(query.End{Statement: s.last})
	return nil
}

// transaction begins or ends one.
func (s *session) transaction(a *answer, r *query.Request) error {
	texts := []string{"COMMIT"}
	switch r.Transaction {
	case query.Begin:
		var err error
		if texts, err = s.d.eng.begin(r); err != nil {
			return err
		}
	case query.Rollback:
		if texts = []string{"ROLLBACK"}; !s.inTransaction() { // the engine rolled it back already
			a.finish(query.End{})
			return nil
		}
	}
	for _, text := range texts {
		if _, err := s.conn.ExecContext(a.ctx, text); err != nil {
			return err
		}
	}
	s.open = r.Transaction == query.Begin
	a.finish(query.End{})
	return nil
}
