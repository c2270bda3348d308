package text

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/sigma"
)

// memcached is the state of a connection that speaks memcached's text protocol.
type memcached struct {
	words [][]byte // reused
	skip  int      // bytes of a value that is too long which are still to come
}

const (
	cachedKeyMax  = 250 // bytes of a key, as the protocol has it
	cachedLineMax = 64 << 10
	wordsMax      = 8192
	monthSeconds  = 30 * 24 * 3600 // more is a time since 1970
)

func (p *memcached) rest() { p.words = nil }

func (p *memcached) busy(c *conn) { c.line("SERVER_ERROR out of memory for long commands; try again") }

func (c *conn) line(s string) { c.out = append(append(c.out, s...), "\r\n"...) }

func (p *memcached) command(c *conn, b []byte) (used, need int, err error) {
	if p.skip > 0 {
		used = min(p.skip, len(b))
		p.skip -= used
		return used, min(p.skip, 1), nil
	}
	end := bytes.IndexByte(b[:min(len(b), cachedLineMax)], '\n')
	switch {
	case end < 0 && len(b) >= cachedLineMax:
		c.line("CLIENT_ERROR line is too long")
		return 0, 0, errProtocol
	case end < 0:
		return 0, len(b) + 1, nil
	}
	p.words = split(p.words[:0], bytes.TrimSuffix(b[:end], []byte{'\r'}))
	end++
	w := p.words
	if len(w) == 0 {
		c.line("ERROR")
		return end, 0, nil
	}
	switch string(w[0]) {
	case "get", "gets":
		c.retrieve(w[1:], len(w[0]) == len("gets"), nil)
	case "gat", "gats":
		if len(w) < 3 {
			c.line("ERROR")
			break
		}
		c.retrieve(w[2:], len(w[0]) == len("gats"), w[1])
	case "set", "add", "replace", "append", "prepend", "cas":
		return p.store(c, w, b, end)
	case "delete":
		c.reply(w, 2, 3, &op.Op{Kind: op.Delete}, "DELETED")
	case "incr", "decr":
		c.count(w)
	case "touch":
		if at, ok := c.exptime(w, 2); ok {
			c.reply(w, 3, 4, &op.Op{Kind: op.Expire, Expiry: at}, "TOUCHED")
		}
	case "flush_all":
		c.flushCached(w)
	case "stats":
		c.stats(w)
	case "version":
		c.line("VERSION " + cachedVersion)
	case "verbosity":
		c.answer(w, "OK")
	case "quit":
		c.ended = true
	default:
		c.line("ERROR")
	}
	return end, 0, nil
}

// split gives the words of a line.
func split(words [][]byte, line []byte) [][]byte {
	for len(words) < wordsMax {
		line = bytes.TrimLeft(line, " ")
		if len(line) == 0 {
			return words
		}
		end := bytes.IndexByte(line, ' ')
		if end < 0 {
			end = len(line)
		}
		words, line = append(words, line[:end]), line[end:]
	}
	return words
}

// quiet says that no answer is wanted.
func quiet(w [][]byte) bool { return string(w[len(w)-1]) == "noreply" }

// answer answers unless that is not wanted.
func (c *conn) answer(w [][]byte, s string) {
	if !quiet(w) {
		c.line(s)
	}
}

// problem answers an error, also to those who want no answers, as it is not what they expect.
func (c *conn) problem(err error) {
	if sigma.KindOf(err) == sigma.KindTooBig {
		c.line("SERVER_ERROR object too large for cache")
		return
	}
	c.line("SERVER_ERROR " + says(err))
}

func (c *conn) goodKey(key []byte) bool {
	if len(key) == 0 || len(key) > cachedKeyMax || bytes.IndexByte(key, 0) >= 0 {
		c.line("CLIENT_ERROR bad key")
		return false
	}
	return true
}

// retrieve answers get and gets, and those that touch too.
func (c *conn) retrieve(keys [][]byte, versions bool, exptime []byte) {
	if len(keys) == 0 {
		c.line("ERROR")
		return
	}
	for _, key := range keys {
		if !c.goodKey(key) {
			return
		}
		if exptime != nil {
			at, ok := c.exptime([][]byte{exptime}, 0)
			if !ok {
				return
			}
			if _, err := c.do(&op.Op{Kind: op.Expire, Key: key, Expiry: at}); err != nil {
				c.problem(err)
				return
			}
		}
		r, err := c.do(&op.Op{Kind: op.Get, Key: key})
		if err != nil {
			c.problem(err)
			return
		}
		if !r.Found {
			continue
		}
		c.out = append(append(append(c.out, "VALUE "...), key...), ' ')
		c.out = append(strconv.AppendUint(c.out, uint64(r.Flags), 10), ' ')
		c.out = strconv.AppendInt(c.out, int64(len(r.Value)), 10)
		if versions {
			c.out = strconv.AppendUint(append(c.out, ' '), r.Version, 10)
		}
		c.out = append(c.out, "\r\n"...)
		c.put(r.Value)
		c.out = append(c.out, "\r\n"...)
		if c.ended || len(c.out) >= flushAt && c.flush() != nil {
			c.ended = true
			return
		}
	}
	c.line("END")
}

// exptime reads the time in a word: 0 = none, a month or less is from now, more since 1970.
func (c *conn) exptime(w [][]byte, at int) (ms int64, ok bool) {
	if at >= len(w) {
		c.line("ERROR")
		return 0, false
	}
	n, ok := number(w[at])
	switch {
	case !ok || n > 1<<36:
		c.line("CLIENT_ERROR invalid exptime argument")
		return 0, false
	case n == 0:
		return 0, true
	case n < 0:
		return 1, true
	case n <= monthSeconds:
		return c.now + n*1000, true
	}
	return n * 1000, true
}

// store is set, add, replace, append, prepend: KEY FLAGS EXPTIME BYTES [noreply]; cas has the
// version after BYTES. end is where the line ends in b.
func (p *memcached) store(c *conn, w [][]byte, b []byte, end int) (used, need int, err error) {
	words := 5
	if string(w[0]) == "cas" {
		words = 6
	}
	if len(w) < words || len(w) > words+1 {
		c.line("ERROR")
		return 0, 0, errProtocol // a value follows of which nothing is known
	}
	flags, ferr := strconv.ParseUint(string(w[2]), 10, 32)
	size, ok := number(w[4])
	if ferr != nil || !ok || size < 0 || size > 1<<31 {
		c.line("CLIENT_ERROR bad command line format")
		return 0, 0, errProtocol
	}
	n := int(size)
	if n > c.server.cfg.Backend.Store().ValueMax() {
		c.line("SERVER_ERROR object too large for cache")
		p.skip = n + 2
		return end, 1, nil
	}
	if len(b) < end+n+2 {
		return 0, end + n + 2, nil
	}
	value := b[end : end+n]
	if string(b[end+n:end+n+2]) != "\r\n" {
		c.line("CLIENT_ERROR bad data chunk")
		return 0, 0, errProtocol
	}
	used = end + n + 2
	at, ok := c.exptime(w, 3)
	if !ok || !c.goodKey(w[1]) {
		return used, 0, nil
	}
	o := op.Op{Kind: op.Set, Key: w[1], Value: value, Flags: uint32(flags), Expiry: at}
	missing := "NOT_STORED"
	switch string(w[0]) {
	case "add":
		o.Condition = op.IfAbsent
	case "replace":
		o.Condition = op.IfPresent
	case "append", "prepend":
		o.Condition = op.IfPresent
		if o.Kind = op.Append; w[0][0] == 'p' {
			o.Kind = op.Prepend
		}
	case "cas":
		o.Condition, missing = op.IfVersion, "NOT_FOUND"
		if o.Version, ferr = strconv.ParseUint(string(w[5]), 10, 64); ferr != nil {
			c.line("CLIENT_ERROR bad command line format")
			return used, 0, nil
		}
	}
	switch r, err := c.do(&o); {
	case err != nil:
		c.problem(err)
	case r.Status == op.OK:
		c.answer(w, "STORED")
	case r.Status == op.Missing:
		c.answer(w, missing)
	case o.Condition == op.IfVersion:
		c.answer(w, "EXISTS")
	default:
		c.answer(w, "NOT_STORED")
	}
	return used, 0, nil
}

// reply does an operation to the key in the second word.
func (c *conn) reply(w [][]byte, least, most int, o *op.Op, done string) {
	if len(w) < least || len(w) > most+1 {
		c.line("ERROR")
		return
	}
	if o.Key = w[1]; !c.goodKey(o.Key) {
		return
	}
	switch r, err := c.do(o); {
	case err != nil:
		c.problem(err)
	case r.Status == op.OK:
		c.answer(w, done)
	default:
		c.answer(w, "NOT_FOUND")
	}
}

// count is incr and decr.
func (c *conn) count(w [][]byte) {
	if len(w) < 3 || len(w) > 4 {
		c.line("ERROR")
		return
	}
	delta, err := strconv.ParseUint(string(w[2]), 10, 64)
	if err != nil {
		c.line("CLIENT_ERROR invalid numeric delta argument")
		return
	}
	if !c.goodKey(w[1]) {
		return
	}
	switch r, err := c.do(&op.Op{Kind: op.Count, Condition: op.IfPresent, Key: w[1], Delta: int64(delta),
		Negative: w[0][0] == 'd'}); {
	case err != nil:
		c.problem(err)
	case r.Status == op.Missing:
		c.answer(w, "NOT_FOUND")
	case r.Status == op.NotNumber:
		c.line("CLIENT_ERROR cannot increment or decrement non-numeric value")
	case !quiet(w):
		c.out = append(strconv.AppendUint(c.out, uint64(r.Number), 10), "\r\n"...)
	}
}

// flushCached is flush_all [delay]: a delay is not possible.
func (c *conn) flushCached(w [][]byte) {
	if len(w) > 1 && !quiet(w[:2]) && string(w[1]) != "0" {
		c.line("CLIENT_ERROR a flush cannot be delayed")
		return
	}
	if err := c.server.cfg.Backend.Flush(c.ctx); err != nil {
		c.problem(err)
		return
	}
	c.answer(w, "OK")
}

// stats is stats [sizes | hot | ...]; of what this server has not, there is nothing.
func (c *conn) stats(w [][]byte) {
	what := ""
	if len(w) > 1 {
		what = string(w[1])
	}
	st := c.server.cfg.Backend.Store().Stats()
	put := func(name string, v any) { c.out = fmt.Appendf(c.out, "STAT %s %v\r\n", name, v) }
	switch what {
	case "":
		now, all := c.server.clients()
		put("pid", os.Getpid())
		put("uptime", int(time.Since(c.server.began).Seconds()))
		put("time", c.now/1000)
		put("version", cachedVersion)
		put("curr_connections", now)
		put("total_connections", all)
		put("cmd_get", st.Gets)
		put("cmd_set", st.Sets)
		put("get_hits", st.Hits)
		put("get_misses", st.Gets-st.Hits)
		put("evictions", st.Evicted)
		put("expired", st.Expired)
		put("curr_items", st.Items)
		put("bytes", st.Bytes)
		put("memory_taken", st.Memory)
		put("limit_maxbytes", st.Limit)
	case "sizes":
		for i, n := range st.Sizes {
			if n > 0 {
				put(strconv.Itoa(1<<i), n)
			}
		}
	case "hot":
		for _, h := range c.server.cfg.Backend.Store().Hot(hotShown) {
			put(clean([]byte(h.Key)), fmt.Sprintf("%.4f", h.Share))
		}
	case "reset":
		c.line("RESET")
		return
	}
	c.line("END")
}
