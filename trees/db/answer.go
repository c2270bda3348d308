package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// answer is what a request is answered, as far as it was made. It is made as it is read.
type answer struct {
	s      *session
	ctx    context.Context // of the statement; nil before it began
	cancel func(why error)
	limit  time.Duration // of it
	asked  bool          // the limit is the request's own
	rowMax int64
	out    []byte
	done   bool

	rows  *sql.Rows
	types []string
	count int64 // rows
	bytes sigma.Bytes
}

// Causes of the end of a statement's context.
var (
	errTime = errors.New("time is up")
	errDone = errors.New("the statement is over")
	errAway = errors.New("who asked gave up")
)

// begin gives the statement its time.
func (a *answer) begin(r *query.Request) {
	l := a.s.d.t.cfg.Limits
	a.limit, a.rowMax = l.Time, l.Rows
	if t := time.Duration(r.TimeoutMS) * time.Millisecond; t > 0 && t < a.limit {
		a.limit, a.asked = t, true
	}
	if r.RowsMax > 0 {
		a.rowMax = min(a.rowMax, r.RowsMax)
	}
	base, cancel := context.WithCancelCause(a.s.ctx)
	ctx, stop := context.WithTimeoutCause(base, a.limit, errTime)
	a.ctx, a.cancel = ctx, func(why error) {
		cancel(why)
		stop()
	}
	if kill := a.s.kill; kill != nil {
		context.AfterFunc(ctx, func() {
			if context.Cause(ctx) != errDone {
				kill()
			}
		})
	}
}

// follow has the statement end when the request does, until the function that it returns is called:
// it goes on with the next request. Until then the engine may be at work, and is watched.
func (a *answer) follow(ctx context.Context) (unfollow func()) {
	if a.cancel == nil {
		return func() {}
	}
	off := context.AfterFunc(ctx, func() { a.cancel(errAway) })
	over := a.s.d.watch(a.ctx)
	return func() {
		off()
		over()
	}
}

// run runs a statement.
func (a *answer) run(r *query.Request) error {
	s := a.s
	args := make([]any, len(r.Args))
	for i, v := range r.Args {
		args[i] = v.V
	}
	text, st := r.SQL, (*sql.Stmt)(nil)
	if r.Statement != 0 {
		if st = s.prepared[r.Statement]; st == nil {
			return sigma.Errorf("db.run", sigma.KindNotFound, "the session has no statement %d", r.Statement)
		}
		text = s.texts[r.Statement]
	}
	if s.d.eng.before != nil {
		if err := s.d.eng.before(s.conn, text); err != nil {
			return err
		}
	}
	s.note(text)
	if r.Want == query.WantCount || r.Want == query.WantAny && !hasRows(text) {
		return a.exec(st, text, args)
	}
	var err error
	if st != nil {
		a.rows, err = st.QueryContext(a.ctx, args...)
	} else {
		a.rows, err = s.conn.QueryContext(a.ctx, text, args...)
	}
	if err != nil {
		return err
	}
	return a.columns()
}

// note follows transactions by words, for engines whose driver does not tell.
func (s *session) note(text string) {
	switch wordOf(text) {
	case "BEGIN", "START", "SET", "XA":
		s.open = true
	case "COMMIT", "ROLLBACK", "END":
		s.open = false
	}
}

func (a *answer) exec(st *sql.Stmt, text string, args []any) error {
	var res sql.Result
	var err error
	if st != nil {
		res, err = st.ExecContext(a.ctx, args...)
	} else {
		res, err = a.s.conn.ExecContext(a.ctx, text, args...)
	}
	if err != nil {
		return err
	}
	var end query.End
	end.Changed, _ = res.RowsAffected() // an engine that does not know says so by an error
	end.LastID, _ = res.LastInsertId()
	a.finish(end)
	return nil
}

func (a *answer) columns() error {
	types, err := a.rows.ColumnTypes()
	if err != nil {
		return err
	}
	cs := make([]query.Column, len(types))
	a.types = make([]string, len(types))
	for i, t := range types {
		a.types[i] = t.DatabaseTypeName()
		cs[i] = query.Column{Name: t.Name(), Type: a.types[i]}
	}
	if len(cs) > 0 {
		a.out = query.AppendColumns(a.out, cs)
	}
	return nil
}

// fill makes n bytes of the answer, or the rest of it.
func (a *answer) fill(ctx context.Context, n int) {
	if a.done || a.rows == nil {
		return
	}
	defer a.follow(ctx)()
	row := make([]any, len(a.types))
	places := make([]any, len(row))
	for i := range row {
		places[i] = &row[i]
	}
	for len(a.out) < n && !a.done {
		if err := a.next(row, places); err != nil {
			a.fail(err)
		}
	}
}

// next makes the next row, or the end.
func (a *answer) next(row, places []any) error {
	if !a.rows.Next() {
		err := a.rows.Err()
		if cerr := a.rows.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			a.finish(query.End{Rows: a.count})
		}
		return err
	}
	if a.count++; a.count > a.rowMax {
		return &sigma.Error{Op: "db.rows", Path: a.s.d.name, Kind: sigma.KindTooBig,
			Msg:  limitMessage("the answer has more than %d rows", a.rowMax),
			Hint: "ask for fewer, as with LIMIT, or for what comes after the last row that you have"}
	}
	clear(row)
	if err := a.rows.Scan(places...); err != nil {
		return err
	}
	size := 0
	for i, v := range row {
		if a.s.d.eng.value != nil {
			v = a.s.d.eng.value(a.types[i], v)
			row[i] = v
		}
		switch v := v.(type) {
		case string:
			size += len(v)
		case []byte:
			size += len(v)
		}
	}
	if size > query.RowMax {
		return &sigma.Error{Op: "db.rows", Path: a.s.d.name, Kind: sigma.KindTooBig,
			Msg: limitMessage("a row has more than %d MiB", query.RowMax>>20), Hint: "ask for parts, as with substr"}
	}
	before := len(a.out)
	a.out = query.AppendRow(a.out, row)
	if a.bytes += sigma.Bytes(len(a.out) - before); a.bytes > a.s.d.t.cfg.Limits.Bytes {
		a.out = a.out[:before]
		return &sigma.Error{Op: "db.rows", Path: a.s.d.name, Kind: sigma.KindTooBig,
			Msg:  limitMessage("the answer has more than %v", a.s.d.t.cfg.Limits.Bytes),
			Hint: "ask for fewer rows or columns"}
	}
	return nil
}

// finish ends the answer.
func (a *answer) finish(end query.End) {
	a.out = query.AppendEnd(a.out, end)
	a.close()
}

// close ends the statement, and the answer with it.
func (a *answer) close() {
	a.done = true
	if a.rows != nil {
		if !a.s.d.eng.brittle && a.cancel != nil {
			a.cancel(errDone) // the rest need not come
		}
		a.rows.Close()
		a.rows = nil
	}
	if a.cancel != nil {
		a.cancel(errDone)
	}
}

// fail ends the answer with an error, and the session too if its connection is gone.
func (a *answer) fail(err error) {
	f, why := a.failure(err)
	a.close()
	a.s.rest = nil // a batch ends with what fails first
	a.out = query.AppendFailure(a.out, f)
	if why != nil {
		a.s.cut(why)
	}
}

// failure tells an error in our words. why is not nil if the session is over by it.
func (a *answer) failure(err error) (f query.Failure, why error) {
	s := a.s
	var over *overError
	if errors.As(err, &over) {
		f = failureOf(over.error)
		f.Code = query.CodeOver
		return f, nil
	}
	if a.ctx != nil && a.ctx.Err() != nil {
		f = a.interrupted()
		if s.d.eng.brittle || isLost(err) {
			f.Message += "; the session is over with it"
			why = sigma.Errorf("db.session", sigma.KindLost, "the session was over when its statement was ended")
		}
		return f, why
	}
	if f, ok := s.d.eng.failure(err); ok {
		if f.Kind == sigma.KindLost.String() {
			why = sigma.Errorf("db.session", sigma.KindLost, "%s", f.Message)
		}
		return f, why
	}
	var e *sigma.Error
	if errors.As(err, &e) {
		return failureOf(e), nil
	}
	if isLost(err) {
		lost := &sigma.Error{Op: "db.session", Path: s.d.name, Kind: sigma.KindLost,
			Msg:  "the connection with the database was lost, and whether the statement took effect is not known",
			Hint: "look before you do it again"}
		if s.open {
			lost.Msg,
				lost.Hint =
				"the connection with the database was lost in a transaction, of which nothing counts unless it was "+
					"being committed", "look before you do it again"
		}
		return failureOf(lost), lost
	}
	s.d.t.cfg.Log.Warn("a statement failed", "database", s.d.name, "err", s.d.def.redacted(err))
	return failureOf(sigma.Errorf("db.run", sigma.KindOther, "the database's driver failed")), nil
}

// interrupted is the failure of a statement whose context ended.
func (a *answer) interrupted() query.Failure {
	e := &sigma.Error{Op: "db.run", Kind: sigma.KindCanceled, Msg: "the statement was ended, since who asked gave up"}
	switch {
	case context.Cause(a.ctx) == errTime && a.asked:
		e.Kind, e.Msg = sigma.KindTimeout, fmt.Sprintf("the statement took longer than the %v that were asked for",
			a.limit)
	case context.Cause(a.ctx) == errTime:
		e.Kind, e.Msg, e.Hint = sigma.KindTimeout,
			limitMessage("the statement and the reading of its rows took longer than %v", a.limit),
			"make it do less at a time, or give it an index"
	}
	return failureOf(e)
}

// failureOf tells one of our own errors.
func failureOf(err error) query.Failure {
	f := query.Failure{Kind: sigma.KindOf(err).String(), Message: err.Error(), Hint: sigma.HintOf(err)}
	var e *sigma.Error
	if errors.As(err, &e) && e.Msg != "" {
		f.Message = e.Msg // what caused it may be told to the log only
	}
	return f
}
