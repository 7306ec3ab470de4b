package k8s_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// apiServer is the part of an API server for pods: versions of all of them, lists in pages, watches
// with bookmarks, and a limited past.
type apiServer struct {
	page  int           // largest page; 0: as requested
	lists bool          // a watch may begin with a list
	begun atomic.Int64  // watches that began with a list
	hold  chan struct{} // if not nil, the end of a list waits until this is closed
	held  chan struct{} // gets a value when the end of a list waits

	mu       sync.Mutex    // guards the fields below
	versions []version     // by number, from first; the last one is now
	first    int           // the oldest version that is kept
	now      int           // the newest
	news     chan struct{} // closed by the next version
}

// version is all pods at a time, and the pod changed last.
type version struct {
	pods map[string]*corev1.Pod // never changed
	key  string
}

var uids atomic.Int64

func newAPIServer() *apiServer {
	return &apiServer{lists: true, versions: []version{{}}, first: 1, now: 1, news: make(chan struct{})}
}

// forget drops all versions before this one: the server answers 410 for them.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions, s.first = s.versions[len(s.versions)-1:], s.now
}

// write adds a version. change gets the pod or nil, and returns the new one.
func (s *apiServer) write(key string, change func(*corev1.Pod) (*corev1.Pod, error)) (*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := s.versions[len(s.versions)-1].pods
	was := pods[key]
	is, err := change(was.DeepCopy())
	if err != nil {
		return nil, err
	}
	s.now++
	pods = maps.Clone(pods)
	if pods == nil {
		pods = make(map[string]*corev1.Pod)
	}
	delete(pods, key)
	if is != nil {
		is.ResourceVersion = strconv.Itoa(s.now)
		pods[key] = is
	}
	s.versions = append(s.versions, version{pods, key})
	close(s.news)
	s.news = make(chan struct{})
	return is, nil
}

// end delays the end of a list.
func (s *apiServer) end() {
	if s.hold != nil {
		s.held <- struct{}{}
		<-s.hold
	}
}

func (s *apiServer) newest() version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[len(s.versions)-1]
}

func (s *apiServer) at(number int) (version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number < s.first {
		return version{}, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", number, s.first))
	}
	if number > s.now {
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return version{}, err
	}
	return s.versions[number-s.first], nil
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, name, status := "", "", false
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/")
	parts := strings.Split(path, "/")
	if ok && parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	switch {
	case ok && r.Method == http.MethodPost && path == "namespaces":
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(&corev1.Namespace{})
		return
	case !ok || parts[0] != "pods":
		answer(w, nil, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	if len(parts) > 1 {
		name, status = parts[1], len(parts) > 2
	}
	var sent corev1.Pod
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			answer(w, nil, apierrors.NewBadRequest(err.Error()))
			return
		}
	}
	key := namespace + "/" + name
	gone := apierrors.NewNotFound(corev1.Resource("pods"), name)
	var pod *corev1.Pod
	var err error
	switch r.Method {
	case http.MethodGet:
		if name == "" {
			s.read(w, r, namespace)
			return
		}
		if pod = s.newest().pods[key]; pod == nil {
			err = gone
		}
	case http.MethodPost:
		pod, err = s.write(namespace+"/"+sent.Name, func(was *corev1.Pod) (*corev1.Pod, error) {
			if was != nil {
				return nil, apierrors.NewAlreadyExists(corev1.Resource("pods"), sent.Name)
			}
			s := sent
			s.Namespace, s.CreationTimestamp = namespace, metav1.Now().Rfc3339Copy()
			s.UID = types.UID(fmt.Sprintf("uid-%d", uids.Add(1)))
			s.Status = corev1.PodStatus{Phase: corev1.PodPending}
			return &s, nil
		})
	case http.MethodPut:
		pod, err = s.write(key, func(p *corev1.Pod) (*corev1.Pod, error) {
			switch {
			case p == nil:
				return nil, gone
			case status:
				p.Status = sent.Status
			default:
				p.Labels, p.Annotations, p.Finalizers = sent.Labels, sent.Annotations, sent.Finalizers
				if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 {
					return nil, nil
				}
			}
			return p, nil
		})
	case http.MethodDelete:
		pod, err = s.write(key, func(p *corev1.Pod) (*corev1.Pod, error) {
			switch {
			case p == nil:
				return nil, gone
			case len(p.Finalizers) == 0:
				return nil, nil
			}
			now := metav1.Now()
			p.DeletionTimestamp = &now
			return p, nil
		})
	}
	if pod == nil {
		pod = &corev1.Pod{}
	}
	answer(w, pod, err)
}

func answer(w http.ResponseWriter, object any, err error) {
	w.Header().Set("Content-Type", "application/json")
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		s.Kind, s.APIVersion = "Status", "v1"
		w.WriteHeader(int(s.Code))
		object = s
	}
	switch o := object.(type) {
	case *corev1.Pod:
		o = o.DeepCopy()
		o.Kind, o.APIVersion = "Pod", "v1"
		object = o
	case *corev1.PodList:
		o.Kind, o.APIVersion = "PodList", "v1"
	}
	json.NewEncoder(w).Encode(object)
}

// A selection is the pods of a request.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (s selection) has(p *corev1.Pod) bool {
	return p != nil && (s.namespace == "" || p.Namespace == s.namespace) && s.labels.Matches(labels.Set(p.Labels)) &&
		s.fields.Matches(fields.Set{"metadata.name": p.Name, "status.phase": string(p.Status.Phase)})
}

func (s *apiServer) read(w http.ResponseWriter, r *http.Request, namespace string) {
	q := r.URL.Query()
	in := selection{namespace: namespace}
	var err1, err2 error
	in.labels, err1 = labels.Parse(q.Get("labelSelector"))
	in.fields, err2 = fields.ParseSelector(q.Get("fieldSelector"))
	if err := errors.Join(err1, err2); err != nil {
		answer(w, nil, apierrors.NewBadRequest(err.Error()))
		return
	}
	s.mu.Lock()
	number, now := 0, s.now
	s.mu.Unlock()
	if text := q.Get("resourceVersion"); text != "" {
		number, _ = strconv.Atoi(text)
	}
	if watch := q.Get("watch"); watch == "true" || watch == "1" {
		s.watch(w, r, in, number, now)
	} else {
		s.list(w, q.Get("limit"), q.Get("continue"), in, number, now)
	}
}

// list returns a page of the current pods, or the next page of an older version.
func (s *apiServer) list(w http.ResponseWriter, limit, rest string, in selection, number, now int) {
	after := ""
	if rest != "" {
		text, key, _ := strings.Cut(rest, ":")
		now, _ = strconv.Atoi(text)
		after = key
	}
	v, err := s.at(max(number, now))
	if err != nil {
		answer(w, nil, err)
		return
	}
	most, _ := strconv.Atoi(limit)
	if most > 0 && s.page > 0 {
		most = min(most, s.page)
	}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(now)}, Items: []corev1.Pod{}}
	for _, key := range slices.Sorted(maps.Keys(v.pods)) {
		if key <= after || !in.has(v.pods[key]) {
			continue
		}
		if most > 0 && len(list.Items) == most {
			list.Continue = fmt.Sprintf("%d:%s/%s", now, list.Items[most-1].Namespace, list.Items[most-1].Name)
			break
		}
		list.Items = append(list.Items, *v.pods[key])
	}
	if list.Continue == "" {
		s.end()
	}
	answer(w, list, nil)
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, in selection, number, now int) {
	q := r.URL.Query()
	initial, bookmarks := q.Get("sendInitialEvents") == "true", q.Get("allowWatchBookmarks") == "true"
	if initial && !s.lists {
		answer(w, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	}
	if initial || number == 0 {
		number = max(number, now)
	}
	v, err := s.at(number)
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	send := func(kind watch.EventType, object any) {
		out.Encode(map[string]any{"type": kind, "object": object})
		w.(http.Flusher).Flush()
	}
	sendPod := func(kind watch.EventType, p *corev1.Pod, number int) {
		p = p.DeepCopy()
		p.Kind, p.APIVersion, p.ResourceVersion = "Pod", "v1", strconv.Itoa(number)
		send(kind, p)
	}
	if initial {
		s.begun.Add(1)
		for _, key := range slices.Sorted(maps.Keys(v.pods)) {
			if p := v.pods[key]; in.has(p) {
				version, _ := strconv.Atoi(p.ResourceVersion)
				sendPod(watch.Added, p, version)
			}
		}
		s.end()
		sendPod(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}, number)
	}
	w.(http.Flusher).Flush()
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	for {
		s.mu.Lock()
		news, now := s.news, s.now
		s.mu.Unlock()
		for number < now {
			next, err := s.at(number + 1)
			if err != nil {
				status := err.(apierrors.APIStatus).Status()
				status.Kind, status.APIVersion = "Status", "v1"
				send(watch.Error, status)
				return
			}
			number++
			was, is := v.pods[next.key], next.pods[next.key]
			switch {
			case in.has(was) && in.has(is) && was.UID == is.UID:
				sendPod(watch.Modified, is, number)
			case in.has(is):
				sendPod(watch.Added, is, number)
			case in.has(was):
				sendPod(watch.Deleted, was, number)
			case bookmarks && number%2 == 0:
				sendPod(watch.Bookmark, &corev1.Pod{}, number)
			}
			v = next
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		}
	}
}
