package text

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/sigma"
)

// respCommand is a command of RESP, with the bounds of its arguments, its name included.
type respCommand struct {
	least, most int // most 0 = none
	run         func(c *conn, args [][]byte)
}

// respCommands is the table of all commands, by name. It is not changed.
var respCommands = map[string]respCommand{
	"GET":       {2, 2, func(c *conn, a [][]byte) { c.getOp(&op.Op{Kind: op.Get, Key: a[1]}) }},
	"SET":       {3, 0, (*conn).set},
	"SETNX":     {3, 3, (*conn).setNX},
	"SETEX":     {4, 4, func(c *conn, a [][]byte) { c.setTimed(a, 1000) }},
	"PSETEX":    {4, 4, func(c *conn, a [][]byte) { c.setTimed(a, 1) }},
	"GETSET":    {3, 3, func(c *conn, a [][]byte) { c.getOp(&op.Op{Kind: op.Set, Key: a[1], Value: a[2], Old: true}) }},
	"GETDEL":    {2, 2, func(c *conn, a [][]byte) { c.getOp(&op.Op{Kind: op.Delete, Key: a[1], Old: true}) }},
	"MGET":      {2, 0, (*conn).mget},
	"MSET":      {3, 0, (*conn).mset},
	"DEL":       {2, 0, func(c *conn, a [][]byte) { c.countOps(op.Delete, a[1:]) }},
	"UNLINK":    {2, 0, func(c *conn, a [][]byte) { c.countOps(op.Delete, a[1:]) }},
	"EXISTS":    {2, 0, func(c *conn, a [][]byte) { c.countOps(op.Peek, a[1:]) }},
	"TOUCH":     {2, 0, func(c *conn, a [][]byte) { c.countOps(op.Get, a[1:]) }},
	"EXPIRE":    {3, 3, func(c *conn, a [][]byte) { c.expire(a, 1000, true) }},
	"PEXPIRE":   {3, 3, func(c *conn, a [][]byte) { c.expire(a, 1, true) }},
	"EXPIREAT":  {3, 3, func(c *conn, a [][]byte) { c.expire(a, 1000, false) }},
	"PEXPIREAT": {3, 3, func(c *conn, a [][]byte) { c.expire(a, 1, false) }},
	"PERSIST":   {2, 2, (*conn).persist},
	"TTL":       {2, 2, func(c *conn, a [][]byte) { c.ttl(a, 1000) }},
	"PTTL":      {2, 2, func(c *conn, a [][]byte) { c.ttl(a, 1) }},
	"INCR":      {2, 2, func(c *conn, a [][]byte) { c.add(a[1], 1) }},
	"DECR":      {2, 2, func(c *conn, a [][]byte) { c.add(a[1], -1) }},
	"INCRBY":    {3, 3, func(c *conn, a [][]byte) { c.addBy(a, 1) }},
	"DECRBY":    {3, 3, func(c *conn, a [][]byte) { c.addBy(a, -1) }},
	"APPEND":    {3, 3, func(c *conn, a [][]byte) { c.length(&op.Op{Kind: op.Append, Key: a[1], Value: a[2]}) }},
	"STRLEN":    {2, 2, func(c *conn, a [][]byte) { c.length(&op.Op{Kind: op.Peek, Key: a[1]}) }},
	"TYPE":      {2, 2, (*conn).typeOf},
	"DBSIZE":    {1, 1, func(c *conn, _ [][]byte) { c.integer(c.server.cfg.Backend.Store().Stats().Items) }},
	"SCAN":      {2, 0, (*conn).scan},
	"FLUSHALL":  {1, 2, (*conn).flushAll},
	"FLUSHDB":   {1, 2, (*conn).flushAll},
	"PING":      {1, 2, (*conn).ping},
	"ECHO":      {2, 2, func(c *conn, a [][]byte) { c.bulk(a[1]) }},
	"INFO":      {1, 0, func(c *conn, _ [][]byte) { c.bulk(c.server.info()) }},
	"CONFIG":    {2, 0, (*conn).config},
	"COMMAND":   {1, 0, (*conn).commandInfo},
	"HELLO":     {1, 0, (*conn).hello},
	"AUTH":      {2, 3, func(c *conn, _ [][]byte) { c.fail("AUTH called, but no password is needed or known here") }},
	"CLIENT":    {2, 0, (*conn).client},
	"SELECT":    {2, 2, (*conn).selectDB},
	"QUIT":      {1, 0, func(c *conn, _ [][]byte) { c.simple("OK"); c.ended = true }},
	"RESET":     {1, 1, func(c *conn, _ [][]byte) { c.simple("RESET") }},
	"READONLY":  {1, 1, func(c *conn, _ [][]byte) { c.simple("OK") }},
	"MEMORY":    {2, 0, (*conn).memory},
}

// failed answers the error of an operation.
func (c *conn) failed(err error) { c.fail(says(err)) }

// fault answers a status that is an error in RESP, and says whether it was one.
func (c *conn) fault(s op.Status) bool {
	switch s {
	case op.NotNumber:
		c.fail("value is not an integer or out of range")
	case op.Overflow:
		c.fail("increment or decrement would overflow")
	default:
		return false
	}
	return true
}

// getOp answers by the value of an operation's result.
func (c *conn) getOp(o *op.Op) {
	switch r, err := c.do(o); {
	case err != nil:
		c.failed(err)
	case !r.Found:
		c.nothing()
	default:
		c.bulk(r.Value)
	}
}

// length answers by the length of a value.
func (c *conn) length(o *op.Op) {
	r, err := c.do(o)
	if err != nil {
		c.failed(err)
		return
	}
	c.integer(int64(r.Length))
}

// after is the time that many units of ms from now, or since 1970; ok is false if there is none.
func (c *conn) after(b []byte, unit int64, relative bool) (at int64, ok bool) {
	const most = 1<<47 - 1 // ms that a record can have
	n, ok := number(b)
	if !ok || n > most/unit || n < -most/unit {
		return 0, false
	}
	if n *= unit; relative {
		n += c.now
	}
	return max(n, 1), n <= most
}

// set is SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL].
func (c *conn) set(args [][]byte) {
	o := op.Op{Kind: op.Set, Key: args[1], Value: args[2]}
	timed := false
	for i := 3; i < len(args); i++ {
		word := strings.ToUpper(string(args[i][:min(len(args[i]), 8)]))
		switch word {
		case "NX", "XX":
			if o.Condition != op.Always {
				c.fail("syntax error")
				return
			}
			if o.Condition = op.IfAbsent; word == "XX" {
				o.Condition = op.IfPresent
			}
			continue
		case "GET":
			o.Old = true
			continue
		}
		if timed {
			c.fail("syntax error")
			return
		}
		timed = true
		unit, relative := int64(1), word == "EX" || word == "PX"
		switch word {
		case "KEEPTTL":
			o.KeepExpiry = true
			continue
		case "EX", "EXAT":
			unit = 1000
		case "PX", "PXAT":
		default:
			c.fail("syntax error")
			return
		}
		if i++; i == len(args) {
			c.fail("syntax error")
			return
		}
		n, isNumber := number(args[i])
		at, ok := c.after(args[i], unit, relative)
		if !isNumber || !ok || n <= 0 {
			c.badTime("set", isNumber)
			return
		}
		o.Expiry = at
	}
	switch r, err := c.do(&o); {
	case err != nil:
		c.failed(err)
	case o.Old && r.Found:
		c.bulk(r.Value)
	case o.Old, r.Status != op.OK:
		c.nothing()
	default:
		c.simple("OK")
	}
}

func (c *conn) badTime(command string, isNumber bool) {
	if !isNumber {
		c.fail("value is not an integer or out of range")
		return
	}
	c.fail("invalid expire time in '" + command + "' command")
}

func (c *conn) setNX(args [][]byte) {
	r, err := c.do(&op.Op{Kind: op.Set, Condition: op.IfAbsent, Key: args[1], Value: args[2]})
	c.yes(r.Status == op.OK, err)
}

// yes answers 1 or 0.
func (c *conn) yes(is bool, err error) {
	switch {
	case err != nil:
		c.failed(err)
	case is:
		c.integer(1)
	default:
		c.integer(0)
	}
}

// setTimed is SETEX and PSETEX.
func (c *conn) setTimed(args [][]byte, unit int64) {
	n, isNumber := number(args[2])
	at, ok := c.after(args[2], unit, true)
	if !isNumber || !ok || n <= 0 {
		c.badTime(strings.ToLower(clean(args[0])), isNumber)
		return
	}
	if _, err := c.do(&op.Op{Kind: op.Set, Key: args[1], Value: args[3], Expiry: at}); err != nil {
		c.failed(err)
		return
	}
	c.simple("OK")
}

func (c *conn) mget(args [][]byte) {
	c.array(len(args) - 1)
	for _, key := range args[1:] {
		if r, err := c.do(&op.Op{Kind: op.Get, Key: key}); err != nil || !r.Found {
			c.nothing() // an error cannot stand within an answer: a cache may miss
		} else {
			c.bulk(r.Value)
		}
		if c.ended || len(c.out) >= flushAt && c.flush() != nil {
			c.ended = true
			return
		}
	}
}

func (c *conn) mset(args [][]byte) {
	if len(args)%2 == 0 {
		c.fail("wrong number of arguments for 'mset' command")
		return
	}
	for i := 1; i < len(args); i += 2 {
		if _, err := c.do(&op.Op{Kind: op.Set, Key: args[i], Value: args[i+1]}); err != nil {
			c.failed(err)
			return
		}
	}
	c.simple("OK")
}

// countOps does the same to some keys and answers for how many there was an item.
func (c *conn) countOps(kind op.Kind, keys [][]byte) {
	n := int64(0)
	for _, key := range keys {
		r, err := c.do(&op.Op{Kind: kind, Key: key})
		if err != nil {
			c.failed(err)
			return
		}
		if r.Found {
			n++
		}
	}
	c.integer(n)
}

func (c *conn) expire(args [][]byte, unit int64, relative bool) {
	at, ok := c.after(args[2], unit, relative)
	if !ok {
		_, isNumber := number(args[2])
		c.badTime(strings.ToLower(clean(args[0])), isNumber)
		return
	}
	r, err := c.do(&op.Op{Kind: op.Expire, Key: args[1], Expiry: at})
	c.yes(r.Status == op.OK, err)
}

func (c *conn) persist(args [][]byte) {
	r, err := c.do(&op.Op{Kind: op.Peek, Key: args[1]})
	if err == nil && r.Found && r.Expiry != 0 {
		r, err = c.do(&op.Op{Kind: op.Expire, Key: args[1]})
		c.yes(r.Status == op.OK, err)
		return
	}
	c.yes(false, err)
}

func (c *conn) ttl(args [][]byte, unit int64) {
	switch r, err := c.do(&op.Op{Kind: op.Peek, Key: args[1]}); {
	case err != nil:
		c.failed(err)
	case !r.Found:
		c.integer(-2)
	case r.Expiry == 0:
		c.integer(-1)
	default:
		c.integer(max(0, (r.Expiry-c.now+unit/2)/unit)) // the owner's clock may be behind
	}
}

func (c *conn) addBy(args [][]byte, sign int64) {
	n, ok := number(args[2])
	if !ok || n == math.MinInt64 && sign < 0 {
		c.fail("value is not an integer or out of range")
		return
	}
	c.add(args[1], sign*n)
}

func (c *conn) add(key []byte, delta int64) {
	switch r, err := c.do(&op.Op{Kind: op.Add, Key: key, Delta: delta}); {
	case err != nil:
		c.failed(err)
	case !c.fault(r.Status):
		c.integer(r.Number)
	}
}

func (c *conn) typeOf(args [][]byte) {
	switch r, err := c.do(&op.Op{Kind: op.Peek, Key: args[1]}); {
	case err != nil:
		c.failed(err)
	case r.Found:
		c.simple("string")
	default:
		c.simple("none")
	}
}

const (
	scanMost   = 1000     // keys of one answer
	scanStep   = 32       // keys that are looked at between two looks at scanBytes
	scanBytes  = 64 << 10 // of keys that are looked at for one answer, about
	patternMax = 256      // bytes
	configMost = 16       // patterns of CONFIG GET
)

// scan is SCAN cursor [MATCH pattern] [COUNT n] [TYPE type].
func (c *conn) scan(args [][]byte) {
	cursor, err := strconv.ParseUint(string(args[1]), 10, 64)
	if err != nil {
		c.fail("invalid cursor")
		return
	}
	count, pattern, none := int64(10), "", false
	for i := 2; i < len(args); i += 2 {
		if i+1 == len(args) {
			c.fail("syntax error")
			return
		}
		ok := true
		switch strings.ToUpper(string(args[i])) {
		case "MATCH":
			pattern = string(args[i+1])
			_, err := path.Match(pattern, "")
			ok = err == nil && len(pattern) <= patternMax
		case "COUNT":
			count, ok = number(args[i+1])
			ok = ok && count > 0
		case "TYPE":
			none = !strings.EqualFold(string(args[i+1]), "string")
		default:
			ok = false
		}
		if !ok {
			c.fail("syntax error")
			return
		}
	}
	var keys [][]byte
	most, size, next := int(min(count, scanMost)), 0, cursor
	for more := true; more; more = next != 0 && len(keys) < most && size < scanBytes {
		next = c.server.cfg.Backend.Store().Scan(next, min(most-len(keys), scanStep), c.now, func(key []byte) {
			keys = append(keys, bytes.Clone(key))
			size += len(key)
		})
	}
	// Not while the store is locked, as a pattern may take long.
	keys = slices.DeleteFunc(keys, func(key []byte) bool { return none || !matches(pattern, key) })
	c.array(2)
	c.bulk(strconv.AppendUint(nil, next, 10))
	c.array(len(keys))
	for _, k := range keys {
		c.bulk(k)
	}
}

// matches is Redis's glob: unlike that of paths, * matches slashes too.
func matches(pattern string, key []byte) bool {
	if pattern == "" || pattern == "*" {
		return true
	}
	hide := strings.NewReplacer("/", "\x01")
	ok, err := path.Match(hide.Replace(pattern), hide.Replace(string(key)))
	return ok && err == nil
}

func (c *conn) flushAll([][]byte) {
	if err := c.server.cfg.Backend.Flush(c.ctx); err != nil {
		c.failed(err)
		return
	}
	c.simple("OK")
}

func (c *conn) ping(args [][]byte) {
	if len(args) > 1 {
		c.bulk(args[1])
		return
	}
	c.simple("PONG")
}

// config is CONFIG GET and RESETSTAT; what is asked for and is not known is left out.
func (c *conn) config(args [][]byte) {
	switch strings.ToUpper(clean(args[1])) {
	case "GET":
		if len(args) > 2+configMost {
			c.fail("too many patterns")
			return
		}
		known := []string{"maxmemory", fmt.Sprint(c.server.cfg.Backend.Store().Stats().Limit),
			"maxmemory-policy", "s3-fifo",
			"maxclients", strconv.Itoa(c.server.cfg.ConnsMax), "save", "", "appendonly", "no", "databases", "1"}
		var found []string
		for _, p := range args[2:] {
			for i := 0; i < len(known); i += 2 {
				if matches(strings.ToLower(string(p)), []byte(known[i])) {
					found = append(found, known[i], known[i+1])
				}
			}
		}
		c.texts(found...)
	case "RESETSTAT":
		c.simple("OK")
	default:
		c.fail("nothing can be configured by a client")
	}
}

func (c *conn) commandInfo(args [][]byte) {
	if len(args) > 1 && strings.EqualFold(string(args[1]), "COUNT") {
		c.integer(int64(c.server.commands))
		return
	}
	c.array(0)
}

// hello is HELLO [version ...]: only version 2 is spoken, at which clients of version 3 go on so.
func (c *conn) hello(args [][]byte) {
	if len(args) > 1 {
		if n, ok := number(args[1]); !ok || n != 2 {
			c.out = append(c.out, "-NOPROTO unsupported protocol version\r\n"...)
			return
		}
	}
	c.array(14)
	for _, pair := range [][2]string{{"server", "redis"}, {"version", respVersion}} {
		c.bulk([]byte(pair[0]))
		c.bulk([]byte(pair[1]))
	}
	c.bulk([]byte("proto"))
	c.integer(2)
	c.bulk([]byte("id"))
	c.integer(c.id)
	for _, pair := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		c.bulk([]byte(pair[0]))
		c.bulk([]byte(pair[1]))
	}
	c.bulk([]byte("modules"))
	c.array(0)
}

// clientNameMax bounds what CLIENT SETNAME sets.
const clientNameMax = 200

func (c *conn) client(args [][]byte) {
	switch strings.ToUpper(clean(args[1])) {
	case "ID":
		c.integer(c.id)
	case "GETNAME":
		c.bulk([]byte(c.name))
	case "SETNAME":
		if len(args) != 3 || len(args[2]) > clientNameMax || bytes.ContainsAny(args[2], " \r\n") {
			c.fail("a client's name has no spaces, and is not long")
			break
		}
		c.name = string(args[2])
		c.simple("OK")
	case "SETINFO", "NO-EVICT", "NO-TOUCH":
		c.simple("OK")
	case "INFO", "LIST":
		c.bulk(fmt.Appendf(nil, "id=%d addr=%s name=%s cmd=client\n", c.id, c.nc.RemoteAddr(), c.name))
	default:
		c.fail("unknown subcommand '" + clean(args[1]) + "'")
	}
}

func (c *conn) selectDB(args [][]byte) {
	if n, ok := number(args[1]); !ok || n != 0 {
		c.fail("DB index is out of range: there is 0 only")
		return
	}
	c.simple("OK")
}

// memory is MEMORY USAGE key.
func (c *conn) memory(args [][]byte) {
	if len(args) < 3 || !strings.EqualFold(string(args[1]), "USAGE") {
		c.fail("unknown subcommand '" + clean(args[1]) + "'")
		return
	}
	r, err := c.do(&op.Op{Kind: op.Peek, Key: args[2]})
	var e *sigma.Error
	switch {
	case errors.As(err, &e):
		c.failed(err)
	case !r.Found:
		c.nothing()
	default:
		c.integer(int64(r.Length + len(args[2]) + itemOverhead))
	}
}
