package zmtp

import "fmt"

// command is the body of a command frame: the length of the name (1 byte), the
// name, the data. Both lie in the connection's buffer.
type command struct {
	name, data []byte
}

func parseCommand(body []byte) (command, error) {
	if len(body) == 0 || body[0] == 0 || len(body) < 1+int(body[0]) {
		return command{}, fmt.Errorf("%w: a command without a name", ErrProtocol)
	}
	n := 1 + int(body[0])
	return command{name: body[1:n], data: body[n:]}, nil
}

// refusal is the error that an ERROR command stands for: the length of a reason
// (1 byte) and the reason.
func (c command) refusal() error {
	reason := c.data
	if len(reason) > 0 {
		reason = reason[1:]
	}
	return fmt.Errorf("%w: %.255q", ErrRefused, reason)
}
