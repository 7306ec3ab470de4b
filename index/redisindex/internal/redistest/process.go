package redistest

import (
	"os"
	"os/exec"
	"runtime"
)

// process is a program that was started. The goroutine of launch ends with it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// launch starts a program, whose output is added to the file log.
func launch(log, name string, args ...string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	endWithParent(p.cmd)
	started := make(chan error)
	go func() {
		// On Linux the process ends with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer output.Close()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // most servers end by a kill
		}
	}()
	return p, <-started
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process, also a stopped one, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}
