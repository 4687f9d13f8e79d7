// The cases of `warmcore bench wake`, in Go. A line on stdin requests a slice; a line on stdout answers with the
// slice's numbers, in the order of `metrics` on the Rust side.
//
// The work is the same as on the Rust side: sets of the same sizes with random cycles, the same buckets of times, and
// messages of the same size.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var zero = time.Now()

func now() int64 { return int64(time.Since(zero)) }

// A window is the time in which a slice counts events.
type window struct{ begin, end int64 }

func (w window) holds(t int64) bool { return w.begin <= t && t <= w.end }

// The rate is in thousands per second, as all rates.
func (w window) rate(count int64) float64 { return float64(count) * 1e6 / float64(w.end-w.begin) }

const (
	subBits = 6
	sub     = 1 << subBits
	buckets = sub * 36
)

// times is a histogram with 64 buckets for each power of two.
type times struct {
	counts [buckets]uint32
	total  int64
}

func (t *times) note(ns int64) {
	if ns < 0 {
		ns = 0
	}
	i := int(ns)
	if ns >= sub {
		power := bits.Len64(uint64(ns)) - 1
		i = (power-subBits+1)*sub + int(ns>>(power-subBits))&(sub-1)
	}
	t.counts[min(i, buckets-1)]++
	t.total++
}

func (t *times) merge(other *times) {
	for i, count := range other.counts {
		t.counts[i] += count
	}
	t.total += other.total
}

func (t *times) at(q float64) float64 {
	wanted, below := q*float64(t.total), 0.0
	for i, count := range t.counts {
		if count == 0 {
			continue
		}
		with := below + float64(count)
		if with >= wanted {
			from, width := float64(i), 1.0
			if i >= sub {
				width = math.Exp2(float64(i/sub - 1))
				from = float64(sub+i%sub) * width
			}
			return from + width*(wanted-below)/float64(count)
		}
		below = with
	}
	return math.NaN()
}

// An rng gives random numbers from a seed (splitmix64).
type rng uint64

func (r *rng) below(end int) int {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return int((z ^ (z >> 31)) % uint64(max(end, 1)))
}

type padded struct {
	n atomic.Int64
	_ [120]byte
}

// counts has a count for each task, since a goroutine does not know its thread.
type counts struct {
	each []padded
	stop atomic.Bool
}

func newCounts(tasks int) *counts { return &counts{each: make([]padded, tasks)} }

func (c *counts) sum() (sum int64) {
	for i := range c.each {
		sum += c.each[i].n.Load()
	}
	return
}

func (c *counts) watch(warm, measure time.Duration) float64 {
	time.Sleep(warm)
	before, began := c.sum(), now()
	time.Sleep(measure)
	rate := float64(c.sum()-before) * 1e6 / float64(now()-began)
	c.stop.Store(true)
	return rate
}

// shares returns the rate of the slowest task, and the fastest task's rate divided by it. The tasks together have rate.
// In the division a count of 0 is taken as 1.
func shares(rate float64, did []int64) []float64 {
	sum, least, most := int64(0), int64(math.MaxInt64), int64(0)
	for _, n := range did {
		sum, least, most = sum+n, min(least, n), max(most, n)
	}
	return []float64{rate * float64(least) / float64(max(sum, 1)), float64(max(most, 1)) / float64(max(least, 1))}
}

// totals returns the number of times in each histogram.
func totals(seen []times) []int64 {
	did := make([]int64, len(seen))
	for i := range seen {
		did[i] = seen[i].total
	}
	return did
}

func (c *counts) did() []int64 {
	did := make([]int64, len(c.each))
	for i := range c.each {
		did[i] = c.each[i].n.Load()
	}
	return did
}

// Warm sets.

type line struct {
	next, touched uint32
	_             [56]byte
}

type shape struct{ tasks, kib int }

var sets = map[shape][][]line{}

func setsOf(tasks, kib int) [][]line {
	if found, ok := sets[shape{tasks, kib}]; ok {
		return found
	}
	clear(sets)
	runtime.GC()
	made := make([][]line, tasks)
	for i := range made {
		lines := make([]line, kib*1024/64)
		for j := range lines {
			lines[j].next = uint32(j)
		}
		d := rng(i)
		for j := len(lines) - 1; j > 0; j-- {
			k := d.below(j)
			lines[j].next, lines[k].next = lines[k].next, lines[j].next
		}
		made[i] = lines
	}
	sets[shape{tasks, kib}] = made
	return made
}

var sink atomic.Uint32

func touch(set []line, chase bool) {
	if chase {
		at := uint32(0)
		for range set {
			l := &set[at]
			l.touched++
			at = l.next
		}
		if at == math.MaxUint32 {
			sink.Store(at)
		}
		return
	}
	for i := range set {
		set[i].touched++
	}
}

func warmSets(between string, chase bool, tasks, kib int, sleep, warm, measure time.Duration) []float64 {
	sets := setsOf(tasks, kib)
	links := make([]chan struct{}, tasks+tasks%2)
	for i := range links {
		links[i] = make(chan struct{}, 1)
	}
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	seen, moves := make([]times, tasks), make([]int64, tasks)
	var all sync.WaitGroup
	for i := 0; i < tasks; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			set, mine := sets[i], &seen[i]
			// The second of two partners waits for the first.
			to, from := links[i^1], links[i]
			if between == "message" && i%2 == 1 {
				<-from
			}
			last := syscall.Gettid()
			for {
				thread, began := syscall.Gettid(), now()
				touch(set, chase)
				t := now()
				if w.holds(t) {
					mine.note(t - began)
					if thread != last {
						moves[i]++
					}
				}
				last = thread
				if t > w.end {
					// A partner that waits continues, and sees that the slice is over.
					close(to)
					return
				}
				switch between {
				case "message":
					to <- struct{}{}
					<-from
				case "sleep":
					time.Sleep(sleep)
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	all.Wait()
	var sum times
	moved := int64(0)
	for i := range seen {
		sum.merge(&seen[i])
		moved += moves[i]
	}
	rate := w.rate(sum.total)
	numbers := []float64{rate, sum.at(0.5), sum.at(0.99), float64(moved) * 100 / float64(sum.total)}
	return append(numbers, shares(rate, totals(seen))...)
}

// Ping-pong.

type ping struct{ answer chan pong }
type pong struct{ next chan ping }

func pingpong(oneshot bool, pairs int, warm, measure time.Duration) []float64 {
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	seen := make([]times, pairs)
	var all sync.WaitGroup
	for i := 0; i < pairs; i++ {
		all.Add(2)
		mine := &seen[i]
		last := now()
		cameBack := func() bool {
			t := now()
			if w.holds(t) {
				mine.note(t - last)
			}
			last = t
			return t <= w.end
		}
		if oneshot {
			first := make(chan ping, 1)
			go func() {
				defer all.Done()
				for pings := first; ; {
					p, ok := <-pings
					if !ok {
						return
					}
					pings = make(chan ping, 1)
					p.answer <- pong{pings}
				}
			}()
			go func() {
				defer all.Done()
				for pings := first; ; {
					answer := make(chan pong, 1)
					pings <- ping{answer}
					pings = (<-answer).next
					if !cameBack() {
						close(pings)
						return
					}
				}
			}()
			continue
		}
		pings, pongs := make(chan uint64, 1), make(chan uint64, 1)
		go func() {
			defer all.Done()
			for n := range pings {
				pongs <- n
			}
		}()
		go func() {
			defer all.Done()
			for n := uint64(0); ; n++ {
				pings <- n
				<-pongs
				if !cameBack() {
					close(pings)
					return
				}
			}
		}()
	}
	all.Wait()
	var sum times
	for i := range seen {
		sum.merge(&seen[i])
	}
	rate := w.rate(sum.total)
	numbers := []float64{rate, sum.at(0.5), sum.at(0.99), sum.at(0.999)}
	if pairs > 1 {
		numbers = append(numbers, shares(rate, totals(seen))...)
	}
	return numbers
}

// Messaging.

func messaging(groups, side, held int, warm, measure time.Duration) []float64 {
	c := newCounts(groups * side)
	var all sync.WaitGroup
	for g := 0; g < groups; g++ {
		receivers := make([]chan [100]byte, side)
		var senders sync.WaitGroup
		for i := range receivers {
			receivers[i] = make(chan [100]byte, held)
			all.Add(1)
			go func() {
				defer all.Done()
				count := &c.each[g*side+i].n
				for message := range receivers[i] {
					count.Add(int64(message[0]))
				}
			}()
		}
		for i := 0; i < side; i++ {
			senders.Add(1)
			go func() {
				defer senders.Done()
				message := [100]byte{1}
				for !c.stop.Load() {
					for _, receiver := range receivers {
						receiver <- message
					}
				}
			}()
		}
		go func() {
			senders.Wait()
			for _, receiver := range receivers {
				close(receiver)
			}
		}()
	}
	rate := c.watch(warm, measure)
	all.Wait()
	return append([]float64{rate}, shares(rate, c.did())...)
}

// Spawn and join: each goroutine has a channel for its result, since Go has no join.
func spawn(batch int, warm, measure time.Duration) []float64 {
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	counted := int64(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		joins := make([]chan struct{}, batch)
		for {
			for i := range joins {
				join := make(chan struct{}, 1)
				joins[i] = join
				go func() { join <- struct{}{} }()
			}
			for _, join := range joins {
				<-join
			}
			t := now()
			if t > w.end {
				return
			}
			if w.holds(t) {
				counted += int64(batch)
			}
		}
	}()
	<-done
	return []float64{w.rate(counted)}
}

// Parked: the sender is locked to its thread and sleeps in the kernel, so that it holds no processor of Go's pool while
// it sleeps.
func parked(from, width int, warm, measure time.Duration) []float64 {
	messages, answers := make(chan int64, 1), make(chan int64, 1)
	go func() {
		for sent := range messages {
			answers <- now() - sent
		}
		close(answers)
	}()
	var wakes, trips times
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		d := rng(now())
		for {
			pause := syscall.NsecToTimespec(int64(from+d.below(width)) * 1000)
			syscall.Nanosleep(&pause, nil)
			sent := now()
			if sent > w.end {
				return
			}
			messages <- sent
			ns := <-answers
			if w.holds(sent) {
				wakes.note(ns)
				trips.note(now() - sent)
			}
		}
	}()
	<-done
	close(messages)
	<-answers
	return []float64{wakes.at(0.5), wakes.at(0.99), trips.at(0.5)}
}

//go:noinline
func compute(steps int64) uint64 {
	x := uint64(1)
	for i := int64(0); i < steps; i++ {
		x = (x ^ uint64(i)) * 0x9e3779b97f4a7c15
		x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9
	}
	return x
}

var psPerStep = sync.OnceValue(func() int64 {
	const steps = 10_000
	best := int64(math.MaxInt64)
	for i := 0; i < 200; i++ {
		began := now()
		compute(steps)
		best = min(best, now()-began)
	}
	return max(best, 1) * 1000 / steps
})

func stepsIn(d time.Duration) int64 { return max(int64(d)*1000/max(psPerStep(), 1), 1) }

func noisy(hogs int, poll, warm, measure time.Duration) []float64 {
	steps := stepsIn(poll)
	c := newCounts(hogs)
	var all sync.WaitGroup
	wakes := make(chan int64, 1<<16)
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	var seen times
	all.Add(1 + hogs)
	go func() {
		defer all.Done()
		for sent := range wakes {
			if w.holds(sent) {
				seen.note(now() - sent)
			}
		}
	}()
	for i := 0; i < hogs; i++ {
		go func() {
			defer all.Done()
			for !c.stop.Load() {
				compute(steps)
				c.each[i].n.Add(1)
				runtime.Gosched()
			}
		}()
	}
	go func() {
		defer close(wakes)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		d := rng(w.begin)
		for {
			pause := syscall.NsecToTimespec(int64(800+d.below(400)) * 1000)
			syscall.Nanosleep(&pause, nil)
			t := now()
			if t > w.end {
				return
			}
			wakes <- t
		}
	}()
	rate := c.watch(warm, measure)
	all.Wait()
	return append([]float64{seen.at(0.99), seen.at(0.5), rate}, shares(rate, c.did())...)
}

func storm(tasks int, warm, measure time.Duration) []float64 {
	c := newCounts(tasks)
	var all sync.WaitGroup
	for i := 0; i < tasks; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for !c.stop.Load() {
				c.each[i].n.Add(1)
				runtime.Gosched()
			}
		}()
	}
	rate := c.watch(warm, measure)
	all.Wait()
	return append([]float64{rate}, shares(rate, c.did())...)
}

func processCPU() int64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func timers(tasks int, timer, warm, measure time.Duration) []float64 {
	c := newCounts(tasks)
	var all sync.WaitGroup
	for i := 0; i < tasks; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for !c.stop.Load() {
				time.Sleep(timer)
				c.each[i].n.Add(1)
			}
		}()
	}
	time.Sleep(warm)
	before := processCPU()
	wakes := c.watch(0, measure)
	cpu := float64(processCPU()-before) / measure.Seconds()
	all.Wait()
	return []float64{cpu / 1e6, wakes, cpu / (wakes * 1e3)}
}

// Idle: goroutines that wait for ever, in a process without other work.
func idle(tasks, spans int, warm, span time.Duration) []float64 {
	for i := 0; i < tasks; i++ {
		go func() { select {} }()
	}
	time.Sleep(warm)
	seen := make([]float64, spans)
	for i := range seen {
		before, began := processCPU(), now()
		time.Sleep(span)
		seen[i] = float64(processCPU()-before) * 1e3 / float64(now()-began)
	}
	return seen
}

// The resident memory of this process, in bytes.
func resident() float64 {
	text, _ := os.ReadFile("/proc/self/smaps_rollup")
	for _, line := range strings.Split(string(text), "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "Rss:" {
			kib, _ := strconv.ParseFloat(words[1], 64)
			return kib * 1024
		}
	}
	return math.NaN()
}

// Memory: the memory of a goroutine that has run once and waits for ever.
func memory(tasks, batch int) []float64 {
	var ran atomic.Int64
	made := int64(0)
	add := func(batches int) {
		for ; batches > 0; batches-- {
			for i := 0; i < batch; i++ {
				go func() {
					ran.Add(1)
					select {}
				}()
			}
			for made += int64(batch); ran.Load() < made; {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}
	add(10)
	before := resident()
	add(tasks / batch)
	return []float64{(resident() - before) / float64(tasks)}
}

// Scope: starts a goroutine for each job and waits for all of them. Whole scopes that began in the window are counted.
func scope(jobs int, job, warm, measure time.Duration) []float64 {
	steps, results := stepsIn(job), make([]uint64, jobs)
	w := window{now() + int64(warm), now() + int64(warm+measure)}
	counted, first := 0, int64(0)
	for {
		from := now()
		var all sync.WaitGroup
		all.Add(jobs)
		for i := range results {
			go func() {
				defer all.Done()
				results[i] = compute(steps)
			}()
		}
		all.Wait()
		if from < w.begin {
			continue
		}
		if counted == 0 {
			first = from
		}
		counted += jobs
		if t := now(); t > w.end {
			return []float64{float64(counted) * 1e6 / float64(t-first)}
		}
	}
}

func run(words []string) ([]float64, error) {
	bad := fmt.Errorf("no case: %q", words)
	if len(words) < 3 {
		return nil, bad
	}
	name, rest := words[0], words[1:]
	var n []int64
	var text []string
	for _, word := range rest {
		if number, err := strconv.ParseInt(word, 10, 64); err == nil {
			n = append(n, number)
		} else {
			text = append(text, word)
		}
	}
	if len(n) < 2 {
		return nil, bad
	}
	warm, measure := time.Duration(n[len(n)-2]), time.Duration(n[len(n)-1])
	n = n[:len(n)-2]
	is := func(case_ string, texts, numbers int) bool {
		return name == case_ && len(text) == texts && len(n) == numbers
	}
	switch {
	case is("warm", 2, 3):
		return warmSets(text[0], text[1] == "chase", int(n[0]), int(n[1]), time.Duration(n[2]), warm, measure), nil
	case is("pingpong", 1, 1):
		return pingpong(text[0] == "oneshot", int(n[0]), warm, measure), nil
	case is("messaging", 0, 3):
		return messaging(int(n[0]), int(n[1]), int(n[2]), warm, measure), nil
	case is("spawn", 0, 1):
		return spawn(int(n[0]), warm, measure), nil
	case is("parked", 0, 2):
		return parked(int(n[0]), int(n[1]), warm, measure), nil
	case is("noisy", 0, 2):
		return noisy(int(n[0]), time.Duration(n[1]), warm, measure), nil
	case is("storm", 0, 1):
		return storm(int(n[0]), warm, measure), nil
	case is("idle", 0, 2):
		return idle(int(n[0]), int(n[1]), warm, measure), nil
	case is("memory", 0, 2):
		return memory(int(n[0]), int(n[1])), nil
	case is("scope", 0, 2):
		return scope(int(n[0]), time.Duration(n[1]), warm, measure), nil
	case is("timers", 0, 2):
		return timers(int(n[0]), time.Duration(n[1]), warm, measure), nil
	}
	return nil, bad
}

func main() {
	// Ignore Ctrl-C and the signal of `timeout`: the parent process ends this program by closing its stdin.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var values []float64
		if len(words) > 0 && words[0] == "run" {
			var err error
			if values, err = run(words[1:]); err != nil {
				fmt.Println(err)
				continue
			}
		}
		// NaN and infinities are written as null, since JSON has neither.
		answer := make([]any, len(values))
		for i, value := range values {
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				answer[i] = value
			}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}
