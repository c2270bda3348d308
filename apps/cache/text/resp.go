package text

import (
	"bytes"
	"strconv"
)

// resp is the state of a connection that speaks RESP: how far its next command was read, so that
// none of it is read twice.
type resp struct {
	count int      // arguments of the command; 0 = it has not begun
	at    int      // bytes that were read
	ends  []span   // of arguments, in the command
	args  [][]byte // reused
}

type span struct{ from, to int }

const (
	argsMax   = 1 << 16
	inlineMax = 64 << 10 // bytes of a command without lengths, and of a line with one
	lineMax   = 32
	// commandMax bounds a command with all its arguments: a longest value, or many short ones.
	commandMax = 16 << 20
)

func (p *resp) rest() {
	if p.count == 0 {
		p.ends, p.args = nil, nil
	}
}

func (p *resp) busy(c *conn) {
	c.out = append(c.out, "-ERR too many long commands are on their way; try again\r\n"...)
}

func (p *resp) command(c *conn, b []byte) (used, need int, err error) {
	if p.count == 0 && b[0] != '*' {
		return p.inline(c, b)
	}
	need, fault := p.read(b, c.server.cfg.Backend.Store().ValueMax())
	if fault != "" {
		c.out = append(append(append(c.out, "-ERR Protocol error: "...), fault...), "\r\n"...)
		return 0, 0, errProtocol
	}
	if need > 0 {
		return 0, need, nil
	}
	p.args = p.args[:0]
	for _, s := range p.ends {
		p.args = append(p.args, b[s.from:s.to])
	}
	used = p.at
	p.count, p.at, p.ends = 0, 0, p.ends[:0]
	if cap(p.ends) > 1024 {
		defer func() { p.ends, p.args = nil, nil }()
	}
	if len(p.args) > 0 {
		p.execute(c, p.args)
	}
	return used, 0, nil
}

// read reads on. need > 0 = the command has as many bytes at least.
func (p *resp) read(b []byte, valueMax int) (need int, fault string) {
	if p.count == 0 {
		n, next, fault := readLength(b, 0, '*')
		if fault != "" || next == 0 {
			return len(b) + 1, fault
		}
		if n > argsMax {
			return 0, "invalid multibulk length"
		}
		p.at = next
		if p.count = int(n); n <= 0 { // nothing, which Redis ignores
			p.count = 0
			return 0, ""
		}
	}
	for len(p.ends) < p.count {
		n, next, fault := readLength(b, p.at, '$')
		if fault != "" || next == 0 {
			return max(len(b), p.at) + 1, fault
		}
		end := next + int(n)
		if n < 0 || n > int64(valueMax) || end > commandMax {
			return 0, "invalid bulk length"
		}
		if end+2 > len(b) {
			return end + 2, ""
		}
		if b[end] != '\r' || b[end+1] != '\n' {
			return 0, "a bulk string has another length than it says"
		}
		p.ends = append(p.ends, span{next, end})
		p.at = end + 2
	}
	return 0, ""
}

// readLength reads a line of a mark and a number. next is 0 if it is not whole.
func readLength(b []byte, at int, mark byte) (n int64, next int, fault string) {
	if at >= len(b) {
		return 0, 0, ""
	}
	if b[at] != mark {
		return 0, 0, "expected '" + string(rune(mark)) + "'"
	}
	line := b[at+1:]
	end := bytes.IndexByte(line[:min(len(line), lineMax)], '\n')
	switch {
	case end < 0 && len(line) >= lineMax:
		return 0, 0, "too big count string"
	case end < 0:
		return 0, 0, ""
	}
	n, ok := number(bytes.TrimSuffix(line[:end], []byte{'\r'}))
	if !ok {
		return 0, 0, "invalid length"
	}
	return n, at + 1 + end + 1, ""
}

// inline executes a command that is a line of words.
func (p *resp) inline(c *conn, b []byte) (used, need int, err error) {
	end := bytes.IndexByte(b[:min(len(b), inlineMax)], '\n')
	switch {
	case end < 0 && len(b) >= inlineMax:
		c.out = append(c.out, "-ERR Protocol error: too big inline request\r\n"...)
		return 0, 0, errProtocol
	case end < 0:
		return 0, len(b) + 1, nil
	}
	if args := bytes.Fields(b[:end]); len(args) > 0 {
		p.execute(c, args)
	}
	return end + 1, 0, nil
}

// execute answers a command.
func (p *resp) execute(c *conn, args [][]byte) {
	var room [16]byte
	name := bytes.ToUpper(args[0][:min(len(args[0]), len(room))])
	if len(args[0]) <= len(room) { // without memory
		name = room[:copy(room[:], args[0])]
		for i, x := range name {
			if x >= 'a' && x <= 'z' {
				name[i] = x - 'a' + 'A'
			}
		}
	}
	cmd, is := respCommands[string(name)]
	switch {
	case !is && (string(name) == "POST" || string(name) == "HOST:"):
		// A browser that a web page has send a request here: its body is not to be taken for
		// commands.
		c.fail("Protocol error: this is not HTTP")
		c.ended = true
	case !is:
		c.fail("unknown command '" + clean(args[0]) + "'")
	case len(args) < cmd.least || cmd.most > 0 && len(args) > cmd.most:
		c.fail("wrong number of arguments for '" + string(bytes.ToLower(name)) + "' command")
	default:
		cmd.run(c, args)
	}
}

// clean is what a client sent, as part of a line.
func clean(b []byte) string {
	q := strconv.Quote(string(b[:min(len(b), 64)]))
	return q[1 : len(q)-1]
}

// The answers.

func (c *conn) simple(s string) { c.out = append(append(append(c.out, '+'), s...), "\r\n"...) }
func (c *conn) fail(s string)   { c.out = append(append(append(c.out, "-ERR "...), s...), "\r\n"...) }
func (c *conn) nothing()        { c.out = append(c.out, "$-1\r\n"...) }
func (c *conn) integer(n int64) { c.mark(':', n) }
func (c *conn) array(n int)     { c.mark('*', int64(n)) }

func (c *conn) mark(m byte, n int64) {
	c.out = append(strconv.AppendInt(append(c.out, m), n, 10), "\r\n"...)
}

func (c *conn) bulk(b []byte) {
	c.mark('$', int64(len(b)))
	c.put(b)
	c.out = append(c.out, "\r\n"...)
}

func (c *conn) texts(all ...string) {
	c.array(len(all))
	for _, s := range all {
		c.bulk([]byte(s))
	}
}
